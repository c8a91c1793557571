"""`murmur decode`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from murmur.commands.options import Parallel, Settings, grouped
from murmur.core.errors import SettingError
from murmur.core.path_checks import folder_to_write, not_a_folder_of_inputs, not_inputs
from murmur.core.printable import say
from murmur.core.whole_files import write_text_whole, write_whole
from murmur.execution.executors import Jobs
from murmur.run.saved_model import Choice
from murmur.speech.commands.model_options import OwnVocabulary, SearchWithBeam, Weights
from murmur.speech.corpus.kaldi_dir import write_table
from murmur.speech.recognition.decoding import Decoding, decoded
from murmur.speech.recognition.rescoring import Rescoring
from murmur.speech.recognition.trained_run import TrainedRun, Wanted, open_run
from murmur.speech.recognition.tuning import PARTS, SearchRequest
from murmur.speech.tasks.prepare_data import check_data

app = typer.Typer(add_completion=False)
RESULTS = ("text", "words.ctm", "recordings.ctm", "summary.json")
PARTIAL = ".decoded"  # folder of the results so far

Source = Annotated[
    str, typer.Argument(metavar="EXPERIMENT", help="Experiment that trained the model: a file or a recipe.")
]


@dataclass(frozen=True)
class Place:
    """The models, the data and the folder of the results.

    Attributes:
        model: Folder of the run, or one of its .safetensors files.
        data: train, dev or test of the experiment, or a Kaldi data directory or cut manifest.
        others: Another run (folder or .safetensors file) with the same outputs, whose scores are averaged with those of
            --model; repeatable. Graph, scale and penalty are those of --model; --dev tunes them for the mean.
        out: Folder for text, words.ctm, recordings.ctm and summary.json.
    """

    model: Path
    data: str = "test"
    others: Annotated[tuple[Path, ...], typer.Option("--with")] = ()
    out: Path = Path("runs/decoded")


@dataclass(frozen=True)
class Search(SearchWithBeam):
    """The same with the number of states.

    Attributes:
        max_active: Largest number of states per frame; by default as tuned on dev.
    """

    max_active: Annotated[int | None, typer.Option(min=21)] = None


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
@grouped
def decode(
    source: Source,
    *,
    place: Place,
    search: Search,
    own: OwnVocabulary,
    lstm: Rescoring,
    weights: Weights = None,
    settings: Settings = (),
    parallel: Parallel,
) -> None:
    """Recognise speech with a trained model, see HELP."""
    out, data = place.out, place.data
    check_places(out, data, (source, *own.files))
    if any(setting.partition("=")[0].strip() == "task.executor" for setting in settings):
        raise SettingError("--set task.executor is not for decoding: give --executor")
    jobs = parallel.chosen
    request = lstm.changed(own.request(search))
    run = open_run(Wanted(place.model, source, settings, request, choice=weights, jobs=jobs, data=data))
    others = opened(place.others, weights, request, jobs)
    write_results(decoded(run, request, data, out / PARTIAL, others, lstm), out)


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
    models: Iterable[Path], weights: Choice | None, search: SearchRequest, jobs: Jobs | None = None
) -> list[TrainedRun]:
    """Open further runs; their search for transforms of adapted features uses the grammar of the command line too."""
    runs = [open_run(Wanted(model, choice=weights, jobs=jobs)) for model in models]
    return [replace(run, grammar=search.grammar) for run in runs]


def write_results(found: Decoding, out: Path) -> None:
    """Write text, words.ctm, recordings.ctm and summary.json, remove older results; print the error rate."""
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
