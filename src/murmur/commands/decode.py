"""`murmur decode`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from murmur.commands.options import Jobs, Settings, Weights
from murmur.commands.rescoring_options import NBEST, Listed, LmWeight, Rescore, chosen_rescoring
from murmur.commands.vocabulary_options import (
    DevOption,
    GrammarOption,
    GuessOption,
    LexiconOption,
    LmOption,
    WordsOption,
    chosen,
)
from murmur.core.path_checks import folder_to_write, not_a_folder_of_inputs, not_inputs
from murmur.core.printable import say
from murmur.engine.checkpoints.checkpoint import write_whole
from murmur.recognition.decoding import Decoding, decoded
from murmur.recognition.rescoring import with_rescoring
from murmur.recognition.trained_run import TrainedRun, Wanted, open_run
from murmur.recognition.tuning import PARTS, SearchRequest
from murmur.run.saved_model import Choice
from murmur.speech.corpus.atomic_file import write_text_whole
from murmur.speech.corpus.kaldi_dir import write_table
from murmur.tasks.prepare_data import check_data

app = typer.Typer(add_completion=False)
RESULTS = ("text", "words.ctm", "recordings.ctm", "summary.json")
PARTIAL = ".decoded"  # folder of the results so far

Source = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="Experiment that trained the model: a file or a recipe.")
]
Model = Annotated[Path, typer.Option(help="Folder of the run, or one of its .safetensors files.")]
Data = Annotated[
    str, typer.Option(help="train, dev or test of the experiment, or a Kaldi data directory or cut manifest.")
]
With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        help="Another run (folder or .safetensors file) with the same outputs, whose scores are averaged with those of"
        " --model; repeatable. Graph, scale and penalty are those of --model; --dev tunes them for the mean.",
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for text, words.ctm, recordings.ctm and summary.json.")]
Scale = Annotated[float | None, typer.Option(help="Acoustic scale; by default as tuned on dev.", min=1e-6)]
Penalty = Annotated[float | None, typer.Option(help="Cost of a word, natural log; by default as tuned on dev.")]
Beam = Annotated[float | None, typer.Option(help="Search beam; by default as tuned on dev.", min=1e-6)]
MaxActive = Annotated[
    int | None, typer.Option(help="Largest number of states per frame; by default as tuned on dev.", min=21)
]


HELP = """Recognise speech with a trained model.

Example: murmur decode yesno --model runs/yesno --data test --out runs/decoded --jobs 2

Writes text, words.ctm (utterance, 1, start, duration, word; not for CTC, whose spikes have no length), summary.json
and, if reco2file_and_channel names channels, recordings.ctm (words at their times in the recordings). Words of a
search that ended outside its grammar (partial in summary.json) are spread evenly over the utterance in both.

Utterances without features, such as too short ones, have an empty hypothesis and count as deletions. summary.json
names them and those whose data cannot be used (left_out).

A finished run decodes other data without experiment, corpus and cache; train, dev and test need the corpus, --set
both. Options replace the search settings of score.json. After a stop the same command decodes the rest.
"""


@app.command(help=HELP)
def decode(
    source: Source,
    model: Model,
    data: Data = "test",
    others: With = None,
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
    rescore: Rescore = None,
    lm_weight: LmWeight = None,
    nbest: Listed = NBEST,
    weights: Weights = None,
    settings: Settings = None,
    jobs: Jobs = None,
) -> None:
    """Recognise speech with a trained model, see HELP."""
    check_places(out, data, (source, grammar, lm, words, lexicon, dev))
    given = {"acoustic_scale": scale, "insertion_penalty": penalty, "beam": beam, "max_active": max_active}
    rescoring = chosen_rescoring(rescore, lm_weight, nbest)
    search = with_rescoring(SearchRequest(chosen(grammar, lm, words, lexicon, guess), dev, given), rescoring)
    run = open_run(Wanted(model, source, tuple(settings or ()), search, choice=weights, jobs=jobs, data=data))
    write_results(decoded(run, search, data, out / PARTIAL, opened(others, weights, search, jobs), rescoring), out)


def check_places(out: Path, data: str, read: Sequence[str | Path | None]) -> None:
    """Check that data other than a part of the corpus are there, and that the results replace no file that is read.

    Raises:
        SettingError, CorpusError: data are missing, or the folder cannot be written or holds inputs.
    """
    folder_to_write(out, "--out")
    not_a_folder_of_inputs(out, "--out", ("wav.scp", "feats.scp", "segments", "utt2spk"), "text")
    if data not in PARTS:
        check_data(data)
    not_inputs((out / name for name in RESULTS), "--out", (data, *read))


def opened(
    models: Iterable[Path] | None, weights: Choice | None, search: SearchRequest, jobs: int | None = None
) -> list[TrainedRun]:
    """Open further runs, whose scores are averaged with those of the first.

    Their search for the transforms of adapted features uses the grammar of the command line too.
    """
    runs = [open_run(Wanted(model, choice=weights, jobs=jobs)) for model in models or ()]
    return [replace(run, grammar=search.grammar) for run in runs]


def write_results(found: Decoding, out: Path) -> None:
    """Write text, words.ctm, recordings.ctm and summary.json, remove older results; print the error rate."""
    out.mkdir(parents=True, exist_ok=True)
    write_table(out / "text", found.texts)
    say(f"{out / 'text'}")
    for name, lines in (("words.ctm", found.word_lines), ("recordings.ctm", found.recording_lines)):
        if lines is None:
            (out / name).unlink(missing_ok=True)  # of other words
            continue
        write_text_whole(out / name, "".join(lines))
        say(f"{out / name}")
    for line in found.lines:
        say(line)
    write_whole(out / "summary.json", json.dumps(found.facts, indent=1).encode())
    shutil.rmtree(out / PARTIAL, ignore_errors=True)
