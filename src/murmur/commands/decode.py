"""`murmur decode`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

from murmur.commands.options import Jobs, Settings, Weights
from murmur.commands.vocabulary_options import (
    DevOption,
    GrammarOption,
    GuessOption,
    LexiconOption,
    LmOption,
    WordsOption,
    chosen,
)
from murmur.core.errors import SettingError
from murmur.core.path_checks import folder_to_write
from murmur.engine.checkpoints.checkpoint import write_whole
from murmur.engine.task import Task
from murmur.recognition.hybrid_search import HybridSearch, word_lines
from murmur.recognition.run_records import SETTINGS, scales_of, task_of
from murmur.recognition.tuning import (
    PARTS,
    SearchRequest,
    check_request,
    corpus_of,
    settings_of_search,
    split_of,
    to_the_end,
)
from murmur.run.saved_model import Choice, read_into, told_choice
from murmur.run.task_checks import model_to_read, task_to_do
from murmur.run.timed import timed
from murmur.speech.corpus.kaldi_dir import write_table
from murmur.speech.decoding.decode_set import Decoded
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.decoding.wer import score
from murmur.tasks.ctc.decode import GREEDY, CtcSearch
from murmur.tasks.ctc.task import CtcTask
from murmur.tasks.hybrid.task import HybridTask
from murmur.tasks.prepare_data import check_data
from murmur.tasks.vocabulary import Vocabulary

app = typer.Typer(add_completion=False)
PARTIAL = ".decoded"  # folder of the results so far

Source = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="Experiment that trained the model: a file or a recipe.")
]
Model = Annotated[Path, typer.Option(help="Folder of the run, or one of its .safetensors files.")]
Data = Annotated[
    str, typer.Option(help="train, dev or test of the experiment, or a Kaldi data directory or cut manifest.")
]
Out = Annotated[Path, typer.Option(help="Folder for text, words.ctm and summary.json.")]
Scale = Annotated[float | None, typer.Option(help="Acoustic scale; by default as tuned on dev.", min=1e-6)]
Penalty = Annotated[float | None, typer.Option(help="Cost of a word, natural log; by default as tuned on dev.")]
Beam = Annotated[float | None, typer.Option(help="Search beam; by default as tuned on dev.", min=1e-6)]
MaxActive = Annotated[
    int | None, typer.Option(help="Largest number of states per frame; by default as tuned on dev.", min=21)
]


@dataclass(frozen=True)
class DecodeRequest:
    """Request to decode: data, folder for results, search, settings tuned by the run, and weights."""

    data: str
    out: Path
    search: SearchRequest
    of_run: Mapping[str, float]
    weights: str = ""


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
    grammar: GrammarOption = None,
    lm: LmOption = None,
    words: WordsOption = None,
    lexicon: LexiconOption = None,
    guess: GuessOption = "auto",
    dev: DevOption = None,
    weights: Weights = None,
    settings: Settings = None,
    jobs: Jobs = None,
) -> None:
    """Recognise speech with a trained model.

    Example: murmur decode yesno --model runs/yesno --data test --out runs/decoded --jobs 2

    Writes text (Kaldi's format, for murmur score), words.ctm (lines of utterance, 1, start, duration, word; in
    seconds; only hybrid systems, since the spikes of CTC have no length) and summary.json (settings, real-time factor,
    and the error rate if the data has transcripts). The task's settings come from the run's run.json; --set changes
    them. The search settings that the run tuned on dev come from its score.json; --scale, --penalty, --beam,
    --max-active and --dev change them. Results are stored one by one: after a stop the same command decodes the rest.
    """
    folder = model if model.is_dir() else model.parent
    task = trained_task(folder, source, settings or (), jobs)
    given = {"acoustic_scale": scale, "insertion_penalty": penalty, "beam": beam, "max_active": max_active}
    search = SearchRequest(chosen(grammar, lm, words, lexicon, guess), dev, given)
    request = DecodeRequest(data, out, search, scales_of(folder))
    stem = check(task, model, weights, request)
    network, told = load(task, stem, weights)
    request = replace(request, weights=told)
    facts = decode_ctc(task, network, request) if isinstance(task, CtcTask) else decode_hybrid(task, network, request)
    write_whole(out / "summary.json", json.dumps({"model": str(stem), "weights": told, **facts}, indent=1).encode())
    shutil.rmtree(out / PARTIAL, ignore_errors=True)


def trained_task(folder: Path, source: str, settings: Sequence[str], jobs: int | None) -> HybridTask | CtcTask:
    """Return the task of a trained model, set to prepare nothing.

    Raises:
        SettingError: the task recognises no speech.
    """
    task = task_of(folder, source, settings, jobs)
    if not isinstance(task, HybridTask | CtcTask):
        raise SettingError(f"{source} trains a {type(task).__name__}, which recognises no speech")
    return replace(task, absent="refuse")


def check(task: HybridTask | CtcTask, model: Path, weights: Choice | None, request: DecodeRequest) -> Path:
    """Check the model, the data, the folders and the search before anything is prepared.

    Returns:
        The file of the model, without suffix.

    Raises:
        SettingError, CorpusError: something is missing; the message names it.
    """
    stem = model_to_read(model, weights)
    folder_to_write(request.out, "--out")
    task_to_do(task)
    if request.data not in PARTS:
        check_data(request.data)
    check_request(task, request.search)
    check_search(task, request)
    return stem


def check_search(task: HybridTask | CtcTask, request: DecodeRequest) -> None:
    """Check that the settings of the search are known and fit its kind.

    Raises:
        SettingError: a best path has settings, or a graph has no acoustic scale.
    """
    if request.search.is_best_path(task):
        if request.search.changes:
            raise SettingError(
                "a best path has no scale, penalty, beam or states to set: give a --grammar, such as loop"
            )
    elif request.search.dev is None and "acoustic_scale" not in {**request.of_run, **request.search.changes}:
        example = "0.3" if isinstance(task, HybridTask) else "0.7"
        raise SettingError(
            f"the run has no score.json with an acoustic scale tuned on dev: give --scale, such as {example}, or tune"
            " it: --dev dev"
        )


def load(task: Task, stem: Path, weights: Choice | None) -> tuple[nn.Module, str]:
    """Return the task's network with the trained weights, and a description of the weights.

    Raises:
        SettingError: the weights do not fit; the message names the tensor.
    """
    with timed("loading data and model"):
        network = task.model()
        facts = read_into(network, stem)
    return network.eval(), told_choice(stem, weights, facts)


def decode_hybrid(task: HybridTask, network: nn.Module, request: DecodeRequest) -> dict[str, Any]:
    """Decode with HCLG."""
    search = HybridSearch(task, network, request.search.grammar, request.out / PARTIAL)
    changes = settings_of_search(task, network, search, request.search)
    options = replace(search.widest, **options_of({**request.of_run, **changes}))
    options = to_the_end(options, request.search.grammar)
    corpus = corpus_of(task, request.data)
    found = search.decode(corpus, options)
    write_texts(found.texts, request.out)
    beside = request.out / ".words.ctm"
    beside.write_text("".join(word_lines(search, found.hypotheses)), encoding="utf-8")
    beside.replace(request.out / "words.ctm")
    typer.echo(found.summary())
    facts = facts_of(found, options, request, 100.0)
    return {**facts, "wer": told(corpus.texts, found.texts, request.weights)}


def decode_ctc(task: CtcTask, network: nn.Module, request: DecodeRequest) -> dict[str, Any]:
    """Decode a CTC network by its best path or with a graph."""
    split = split_of(task, request.data)
    search = search_of(task, request.search.grammar)
    if search is None:
        with timed(f"recognising {len(split.names)} utterances"):
            texts = task.transcribe(network, split)
        write_texts(texts, request.out)
        phones = task.data.units.kind == "phone"  # no words to compare
        return {"search": "best path", "wer": None if phones else told(split.texts, texts, request.weights)}
    search = replace(search, kept=request.out / PARTIAL)
    changes = settings_of_search(task, network, search, request.search)
    options = replace(task.decoding.first, **options_of({**request.of_run, **changes}))
    options = to_the_end(options, request.search.grammar)
    with timed(f"recognising {len(split.names)} utterances"):
        found = search.decode(task.outputs(network, split).scores, options)
    write_texts(found.texts, request.out)
    facts = facts_of(found, options, request, search.frames_per_second)
    return {**facts, "wer": told(split.texts, found.texts, request.weights)}


def search_of(task: CtcTask, grammar: str | Vocabulary | None) -> CtcSearch | None:
    """Return the search of a CTC network with a grammar; None for the best path."""
    if isinstance(grammar, Vocabulary):
        return task.search.with_own(grammar)
    name = grammar or task.decoding.grammar
    return None if name == GREEDY else replace(task.search, decoding=replace(task.decoding, grammar=name))


def facts_of(
    found: Decoded, options: DecodeOptions, request: DecodeRequest, frames_per_second: float
) -> dict[str, Any]:
    """Settings and speed of a search, and the utterances that it did not complete."""
    speed = found.real_time_factor(frames_per_second)
    own = {} if request.search.named is None else {"grammar": request.search.named}
    return {**own, "search": shown(options), "real_time_factor": speed, "partial": list(found.partial)}


def options_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Search settings read from JSON, converted to the types of the search."""
    return {name: int(value) if name == "max_active" else value for name, value in settings.items()}


def write_texts(texts: Mapping[str, str], out: Path) -> None:
    """Write hypotheses as Kaldi's text; an utterance without words keeps its line."""
    out.mkdir(parents=True, exist_ok=True)
    write_table(out / "text", texts)
    typer.echo(f"{out / 'text'}")


def told(references: Mapping[str, str], texts: Mapping[str, str], weights: str) -> float | None:
    """Print the error rate and return it in percent; None if the data has no transcripts."""
    if not any(references.values()):
        return None
    rate = score({name: references[name] for name in texts}, texts)
    typer.echo(f"{rate}; {weights}")
    return rate.percent


def shown(options: DecodeOptions) -> dict[str, float]:
    """Settings of the search."""
    return {field: getattr(options, field) for field in SETTINGS}
