"""`murmur decode`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

from murmur.commands.checks import folder_to_write, model_to_read, task_to_do
from murmur.commands.hybrid_search import HybridSearch, word_lines
from murmur.commands.options import Jobs, Settings
from murmur.commands.prepare_data import check_data, read_corpus
from murmur.commands.run_records import SETTINGS, scales_of, task_of
from murmur.commands.timed import timed
from murmur.engine.checkpoint import write_whole
from murmur.engine.task import Task
from murmur.mistakes import SettingError
from murmur.recipes.ctc import CtcTask
from murmur.recipes.ctc_decode import GREEDY
from murmur.recipes.hybrid import HybridTask
from murmur.speech.corpus import Corpus
from murmur.speech.decode import DecodeOptions
from murmur.speech.kaldi_dir import write_table
from murmur.speech.wer import score
from murmur.trained import find_model, read_into

app = typer.Typer(add_completion=False)
PARTS = ("train", "dev", "test")


Source = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="The experiment that trained the model: a file or a recipe.")
]
Model = Annotated[Path, typer.Option(help="Folder of the run, or one of its .safetensors files.")]
Data = Annotated[
    str, typer.Option(help="train, dev or test of the experiment, or a Kaldi data directory or cut manifest.")
]
Out = Annotated[Path, typer.Option(help="Folder for text, words.ctm and summary.json.")]
Scale = Annotated[float | None, typer.Option(help="Acoustic scale; as tuned on dev by the run otherwise.", min=1e-6)]
Penalty = Annotated[float | None, typer.Option(help="Cost of a word, natural log; as tuned on dev otherwise.")]
Beam = Annotated[float | None, typer.Option(help="Search beam; as tuned on dev otherwise.", min=1e-6)]
MaxActive = Annotated[int | None, typer.Option(help="Most states a frame; as tuned on dev otherwise.", min=21)]
Grammar = Annotated[
    str | None,
    typer.Option(
        help="loop, 'one word', a language model of the set, for CTC also greedy; the experiment's otherwise."
    ),
]


@app.command()
def decode(
    source: Source,
    model: Model,
    data: Data = "test",
    out: Out = Path("runs/decoded"),
    scale: Scale = None,
    penalty: Penalty = None,
    beam: Beam = None,
    max_active: MaxActive = None,
    grammar: Grammar = None,
    settings: Settings = None,
    jobs: Jobs = None,
) -> None:
    """Recognise speech with a trained model.

    Example: murmur decode yesno --model runs/yesno --data test --out runs/decoded --jobs 2

    Writes text (Kaldi's format, for murmur score), words.ctm (utterance 1 start duration word, in seconds; hybrid
    systems only: the spikes of CTC have no length) and summary.json (settings, real-time factor, error rate where the
    data has transcripts). The task's settings of the run, from its run.json, hold unless --set changes them; what the
    run tuned on dev, from its score.json, holds unless --scale, --penalty, --beam or --max-active are given.
    """
    folder = model if model.is_dir() else model.parent
    task = task_of(folder, source, settings or (), jobs)
    if not isinstance(task, HybridTask | CtcTask):
        raise SettingError(f"{source} trains a {type(task).__name__}, which recognises no speech")
    check(task, model, data, grammar, out)
    given = {"acoustic_scale": scale, "insertion_penalty": penalty, "beam": beam, "max_active": max_active}
    changes = {name: value for name, value in given.items() if value is not None}
    check_search(task, grammar, {**scales_of(folder), **changes}, changes)
    if isinstance(task, CtcTask):
        if grammar is not None:
            task = replace(task, decoding=replace(task.decoding, grammar=grammar))
        facts = decode_ctc(task, load(task, model), (data, changes), (scales_of(folder), out))
    else:
        facts = decode_hybrid(task, load(task, model), (data, grammar, changes), scales_of(folder), out)
    write_whole(out / "summary.json", json.dumps({"model": str(find_model(model)), **facts}, indent=1).encode())


def check(task: HybridTask | CtcTask, model: Path, data: str, grammar: str | None, out: Path) -> None:
    """Check the model, the data and the folders of a decoding, before anything is prepared.

    Raises:
        SettingError, CorpusError: names what is missing.
    """
    model_to_read(model)
    folder_to_write(out, "--out")
    task_to_do(task)
    if data not in PARTS:
        check_data(data)
    if grammar is not None:
        task.check_grammar(grammar, "--grammar")


def check_search(
    task: HybridTask | CtcTask, grammar: str | None, scales: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    """Check that the settings of the search are known, and fit its kind.

    Raises:
        SettingError: a best path with settings, or a graph without an acoustic scale.
    """
    if isinstance(task, CtcTask) and (grammar or task.decoding.grammar) == GREEDY:
        if changes:
            raise SettingError(
                "a best path has no scale, penalty, beam or states to set: give a --grammar, such as loop"
            )
    elif "acoustic_scale" not in scales:
        example = "0.3" if isinstance(task, HybridTask) else "0.7"
        raise SettingError(
            f"the run has no score.json with an acoustic scale tuned on dev: give --scale, such as {example}"
        )


def load(task: Task, model: Path) -> nn.Module:
    """The task's network with the trained weights.

    Raises:
        SettingError: they do not fit; names the tensor.
    """
    with timed("loading data and model"):
        task.prepare()
        network = task.model()
        read_into(network, find_model(model))
    return network.eval()


def decode_hybrid(
    task: HybridTask,
    network: nn.Module,
    wanted: tuple[str, str | None, Mapping[str, Any]],
    tuned: Mapping[str, float],
    out: Path,
) -> dict[str, Any]:
    """Decode with HCLG; `wanted` are the data, the grammar and the search settings that were given."""
    data, grammar, changes = wanted
    search = HybridSearch(task, network, grammar)
    options = replace(search.widest, **options_of({**tuned, **changes}))
    corpus = corpus_of(task, data)
    found = search.decode(corpus, options)
    write_texts(found.texts, out)
    beside = out / ".words.ctm"
    beside.write_text("".join(word_lines(search, found.hypotheses)), encoding="utf-8")
    beside.replace(out / "words.ctm")
    typer.echo(found.summary())
    facts = {"search": shown(options), "real_time_factor": found.real_time_factor(), "partial": list(found.partial)}
    return {**facts, "wer": told(corpus.texts, found.texts)}


def corpus_of(task: HybridTask, data: str) -> Corpus:
    """A part of the set, or other data."""
    return getattr(task.material, data) if data in PARTS else read_corpus(data)


def decode_ctc(
    task: CtcTask,
    network: nn.Module,
    wanted: tuple[str, Mapping[str, Any]],
    places: tuple[Mapping[str, float], Path],
) -> dict[str, Any]:
    """Decode by the best path of CTC, or with a graph; `wanted` are the data and the search settings that were given.

    `places` are what the run tuned on dev and the folder of the results.
    """
    (data, changes), (tuned, out) = wanted, places
    greedy = task.decoding.grammar == GREEDY
    split = getattr(task.data, data) if data in PARTS else task.read(read_corpus(data))
    if greedy:
        with timed(f"recognising {len(split.names)} utterances"):
            texts = task.transcribe(network, split)
        write_texts(texts, out)
        phones = task.data.units.kind == "phone"  # no words to compare
        return {"search": "best path", "wer": None if phones else told(split.texts, texts)}
    options = replace(task.decoding.first, **options_of({**tuned, **changes}))
    with timed(f"recognising {len(split.names)} utterances"):
        found = task.search.decode(task.outputs(network, split).scores, options)
    write_texts(found.texts, out)
    speed = found.real_time_factor(task.search.frames_per_second)
    facts = {"search": shown(options), "real_time_factor": speed, "partial": list(found.partial)}
    return {**facts, "wer": told(split.texts, found.texts)}


def options_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Search settings with the types that the search wants; they come from JSON, where all are alike."""
    return {name: int(value) if name == "max_active" else value for name, value in settings.items()}


def write_texts(texts: Mapping[str, str], out: Path) -> None:
    """Hypotheses as Kaldi's text; utterances without a word keep their line."""
    out.mkdir(parents=True, exist_ok=True)
    write_table(out / "text", texts)
    typer.echo(f"{out / 'text'}")


def told(references: Mapping[str, str], texts: Mapping[str, str]) -> float | None:
    """The error rate in percent, printed; None where the data has no words to compare with."""
    if not any(references.values()):
        return None
    rate = score({name: references[name] for name in texts}, texts)
    typer.echo(str(rate))
    return rate.percent


def shown(options: DecodeOptions) -> dict[str, float]:
    """What the search was set to."""
    return {field: getattr(options, field) for field in SETTINGS}
