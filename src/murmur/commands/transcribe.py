"""`murmur transcribe`."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from murmur.commands.options import OfRun, Settings, Trust, Weights
from murmur.commands.vocabulary_options import (
    DevOption,
    GrammarOption,
    GuessOption,
    LexiconOption,
    LmOption,
    WordsOption,
    chosen,
)
from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.core.path_checks import folder_to_write, not_inputs
from murmur.core.printable import printable, say
from murmur.engine.checkpoints.checkpoint import write_whole
from murmur.execution.processes import bar_of
from murmur.execution.told_once import ToldOnce, told_once
from murmur.recognition.adapted_transcriber import adapted_transcriber
from murmur.recognition.batch import (
    Opened,
    Reading,
    Unit,
    is_of,
    made,
    opened_export,
    opened_gaussians,
    opened_network,
    recording_name,
    units_of,
    unnamed,
)
from murmur.recognition.exported_model import exported_transcriber, looks_exported
from murmur.recognition.trained_run import TrainedRun, Wanted, open_run
from murmur.recognition.transcriber import SearchedGraph, transcriber
from murmur.recognition.tuning import SearchRequest
from murmur.run.saved_model import Choice
from murmur.run.task_checks import model_to_read
from murmur.speech.corpus.recordings import Channels
from murmur.speech.corpus.text_lines import nfc, numbered_lines
from murmur.speech.decoding.transcript import FORMATS, STDIN, SUFFIXES, Transcript, readable, stem_of

app = typer.Typer(add_completion=False)
SOME_FAILED = 3
Format = Literal["text", "json", "ctm", "srt"]
FILES, SEARCH, OUTPUT = "Audio", "Search", "Output"

Model = Annotated[Path, typer.Argument(help="Folder of a run, one of its .safetensors files, or an export folder.")]
Files = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="WAV, FLAC, Ogg, MP3 or SPHERE files, or - for a stream.")
]
Form = Annotated[Format, typer.Option("--format", help="text, json, ctm or srt.", rich_help_panel=OUTPUT)]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the transcripts, one file per recording; standard output by default.", rich_help_panel=OUTPUT
    ),
]
Rate = Annotated[
    int | None,
    typer.Option(
        min=1000,
        help="Sample rate in Hz of a stream of raw 16-bit little-endian samples on -.",
        rich_help_panel=FILES,
    ),
]
ChannelsOption = Annotated[
    Channels,
    typer.Option(help="average channels, or give each a transcript of its own.", rich_help_panel=FILES),
]
Longest = Annotated[
    float,
    typer.Option(
        min=1.0, help="Longest piece in seconds; longer recordings are cut at silences.", rich_help_panel=FILES
    ),
]
Scale = Annotated[float | None, typer.Option(min=1e-6, help="Acoustic scale.", rich_help_panel=SEARCH)]
Penalty = Annotated[float | None, typer.Option(help="Cost of a word, natural log.", rich_help_panel=SEARCH)]
Beam = Annotated[
    float | None, typer.Option(min=1e-6, help="Search beam; a smaller one is faster.", rich_help_panel=SEARCH)
]
LatticeBeam = Annotated[
    float | None,
    typer.Option(min=1e-6, help="Beam of the paths that confidences are computed from.", rich_help_panel=SEARCH),
]


Adapt = Annotated[
    bool,
    typer.Option(
        "--adapt",
        help="Adapt to the speaker: the network, if its input depends on the speaker, else the run's speaker-adapted"
        " Gaussian system; all files are of one speaker unless --utt2spk names them.",
        rich_help_panel=SEARCH,
    ),
]
Utt2spk = Annotated[
    Path | None,
    typer.Option(
        "--utt2spk",
        help="File of lines NAME SPEAKER for --adapt; NAME is the file without folder and suffix, and -CHANNEL.",
        rich_help_panel=SEARCH,
    ),
]
JobsOption = Annotated[
    int,
    typer.Option(
        "--jobs",
        min=1,
        help="Number of processes that transcribe; each holds the model and its search graph in memory.",
        rich_help_panel=FILES,
    ),
]


HELP = """Transcribe recordings, with the time and the confidence of each word.

Example: murmur transcribe runs/demo/one-learner talk.flac --format srt --out subtitles

A finished run and an export folder (murmur export) can be moved; they need neither the corpus nor the cache.

A stream: ffmpeg -i talk.mp4 -f wav - | murmur transcribe runs/demo/one-learner - --format json

A vocabulary of your own: murmur transcribe runs/demo/one-learner talk.flac --grammar own.jsgf

A call with a speaker on each channel: murmur transcribe runs/demo/one-learner call.sph --channels each

Many recordings, four at a time: murmur transcribe runs/own talks/*.flac --out texts --jobs 4

One speaker's recordings, adapted to the speaker in two passes: murmur transcribe runs/own talk-*.flac --adapt

Channels are averaged and other sample rates are resampled; a line on standard error says so, for the first three files
and then with a count. Unreadable files are reported, the others are transcribed, and the exit status is 3. The words
and their order do not depend on --jobs; the files of one speaker (--adapt) stay in one process.
"""


@app.command(help=HELP)
def transcribe(
    model: Model,
    files: Files,
    form: Form = "text",
    out: Out = None,
    rate: Rate = None,
    channels: ChannelsOption = "average",
    longest: Longest = 30.0,
    grammar: GrammarOption = None,
    lm: LmOption = None,
    words: WordsOption = None,
    lexicon: LexiconOption = None,
    guess: GuessOption = "auto",
    dev: DevOption = None,
    scale: Scale = None,
    penalty: Penalty = None,
    beam: Beam = None,
    lattice_beam: LatticeBeam = None,
    experiment: OfRun = None,
    trust: Trust = False,
    weights: Weights = None,
    settings: Settings = None,
    adapt: Adapt = False,
    utt2spk: Utt2spk = None,
    jobs: JobsOption = 1,
) -> None:
    """Transcribe recordings, see HELP."""
    speakers = check_speakers(adapt, utt2spk, channels)
    _check(model, weights, files, rate, out, channels, form, (grammar, lm, words, lexicon, dev, utt2spk))
    beams = {"beam": beam, "lattice_beam": lattice_beam}
    inputs = _inputs(files, Reading(rate, channels), partial(_write, form, out, len(files) > 1), speakers, jobs)
    if looks_exported(model):
        own: dict[str, object] = {"grammar": grammar, "lm": lm, "words": words, "lexicon": lexicon, "dev": dev}
        own |= {"scale": scale, "penalty": penalty, "experiment": experiment, "set": settings, "weights": weights}
        _refuse(model, adapt, own | {"guess": None if guess == "auto" else guess, "trust": trust or None})
        return _end(_do_export(inputs, model, beams, longest), len(files))
    given = {"acoustic_scale": scale, "insertion_penalty": penalty, **beams}
    request = SearchRequest(chosen(grammar, lm, words, lexicon, guess), dev, given)
    wanted = Wanted(model, experiment, tuple(settings or ()), request, trust, weights)
    return _end(_do_run(inputs, _opened(wanted, weights, adapt), wanted, request, longest), len(files))


def check_rate(rate: int | None, files: Sequence[str]) -> None:
    """Check that there is a stream that --rate can be of.

    Raises:
        SettingError: there is none.
    """
    if rate is not None and STDIN not in files:
        raise SettingError("--rate is for a stream of raw samples on -: files name their own rates, leave it out")


def check_format(form: Format, out: Path | None, files: Sequence[str], channels: Channels) -> None:
    """Check that transcripts on standard output can be told apart.

    Raises:
        SettingError: they cannot.
    """
    if form == "srt" and out is None and (len(files) > 1 or channels == "each"):
        raise SettingError("--format srt: subtitles are of one recording: give --out FOLDER, which has a file for each")
    twice = [stem for stem, count in Counter(map(stem_of, files)).items() if count > 1]
    if form == "ctm" and out is None and twice:
        raise SettingError(
            f"--format ctm names recordings by their files without folder and suffix; two are {readable(twice[0])!r}:"
            " rename one, or run twice"
        )


def check_weights(run: TrainedRun, weights: Choice | None, adapt: bool) -> None:
    """Check that the network whose weights are chosen is the one that transcribes.

    Raises:
        SettingError: a Gaussian system transcribes.
    """
    if adapt and weights is not None and run.acoustic.speakers is None:
        raise SettingError("--weights: --adapt transcribes with the Gaussian system of this run: leave one of them out")


@dataclass(frozen=True)
class Inputs:
    """Files to transcribe, and the ways to read and to write them.

    Attributes:
        units: files that are transcribed together.
        reading: the way to read them.
        write: function that writes the transcript of a recording.
        adapt: True to adapt to the speakers.
        jobs: number of processes, at most one for each unit.
    """

    units: Sequence[Unit]
    reading: Reading
    write: Callable[[Transcript, ToldOnce], None]
    adapt: bool = False
    jobs: int = 1


def _inputs(
    files: Sequence[str],
    reading: Reading,
    write: Callable[[Transcript, ToldOnce], None],
    speakers: Mapping[str, str] | None,
    jobs: int,
) -> Inputs:
    """The inputs of a command line; raises the errors of `units_of`."""
    if speakers:
        _check_stems([nfc(stem_of(name)) for name in files], speakers)
    units = units_of(files, speakers, reading.channels)
    return Inputs(units, reading, write, speakers is not None, min(jobs, len(units)))


def _opened(wanted: Wanted, weights: Choice | None, adapt: bool) -> TrainedRun:
    run = open_run(wanted)
    check_weights(run, weights, adapt)
    return run


def _do_export(inputs: Inputs, model: Path, beams: Mapping[str, float | None], longest: float) -> int:
    """Transcribe with an export folder; return the number of unreadable files."""
    here = Opened.of(exported_transcriber(model, beams, longest))
    several = partial(opened_export, model, beams, longest)
    return _do_all(inputs, several if inputs.jobs > 1 else lambda: here)


def _do_run(inputs: Inputs, run: TrainedRun, wanted: Wanted, request: SearchRequest, longest: float) -> int:
    """Transcribe with a run, adapted to its speakers if they are given; return the number of unreadable files."""
    several = inputs.jobs > 1
    if inputs.adapt and run.acoustic.speakers is None:
        adapted = adapted_transcriber(run, request, longest)
        say(f"murmur: --adapt: the Gaussian system {adapted.gaussians.name} in place of the network", err=True)
        here = Opened(adapted.front.rate_hz, adapted)
        return _do_all(inputs, partial(opened_gaussians, wanted, request, longest) if several else lambda: here)
    say(f"murmur: {run.weights}", err=True)
    search, options = run.searched(request)
    graph = None if search is None else SearchedGraph.of(search, options)
    if several:
        return _do_all(inputs, partial(opened_network, wanted, graph, longest))
    return _do_all(inputs, lambda: Opened.of(transcriber(run, graph, longest)))


def _end(failed: int, count: int) -> None:
    """End with a status of its own if files could not be read."""
    if failed:
        say(f"murmur: {failed} of {count} could not be read", err=True)
        raise typer.Exit(SOME_FAILED)


def _check(
    model: Path,
    weights: Choice | None,
    files: list[str],
    rate: int | None,
    out: Path | None,
    channels: Channels,
    form: Format,
    read: Sequence[str | Path | None],
) -> None:
    """Check that the model exists, that the files do, and that no transcript replaces a file that is read."""
    if not looks_exported(model):
        model_to_read(model, weights)
    check_rate(rate, files)
    _check_names(files, out, channels)
    check_format(form, out, files, channels)
    if out is not None:
        inputs = [Path(each) for each in (*files, *read) if each is not None]
        stems = [stem_of(name) for name in files]
        if channels == "each":
            stems += [path.stem for path in inputs if is_of(path.stem, stems, itself=False)]
        not_inputs((out / f"{stem}{SUFFIXES[form]}" for stem in stems), "--out", inputs)


def _do_all(inputs: Inputs, opened: Callable[[], Opened]) -> int:
    """Transcribe all files with a progress bar; return the number of unreadable ones."""
    failed: set[str] = set()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    count = len({name for unit in inputs.units for name in unit.files})
    results = made(inputs.units, opened, inputs.reading, sys.stdin.buffer.read, inputs.jobs)
    with (
        told_once(partial(_tell, console)) as told,
        bar_of(console=console, disable=count < 2) as progress,
        closing(results),
    ):
        bar = progress.add_task("transcribing", total=sum(len(unit.files) for unit in inputs.units))
        for unit, result in results:
            for name in result.failed.keys() - failed:
                _tell(console, readable(result.failed[name]))
            failed |= result.failed.keys()
            for own in result.silent:
                _tell(console, f"{readable(own)} has no sound, and is transcribed by itself")
            for transcript in result.transcripts:
                inputs.write(transcript, told)
            progress.advance(bar, len(unit.files))
    return len(failed)


def _tell(console: Console, text: str) -> None:
    console.print(f"murmur: {printable(text)}", markup=False)


def check_speakers(adapt: bool, utt2spk: Path | None, channels: Channels) -> Mapping[str, str] | None:
    """Return {name: speaker} of --utt2spk, empty without it; None without --adapt.

    Raises:
        SettingError: the options do not fit together, or the file is missing or malformed.
    """
    if utt2spk is None:
        if adapt and channels == "each":
            raise SettingError("--adapt --channels each: each channel has a speaker, so name the speakers by --utt2spk")
        return {} if adapt else None
    if not adapt:
        raise SettingError("--utt2spk names the speakers that --adapt adapts to: give --adapt too")
    if not utt2spk.is_file():
        raise SettingError(f"--utt2spk: there is no file {utt2spk}")
    return _speakers_in(utt2spk)


def _speakers_in(utt2spk: Path) -> Mapping[str, str]:
    """{name: speaker} of a file with lines NAME SPEAKER; names may hold spaces."""
    speakers: dict[str, str] = {}
    for place, line in numbered_lines(utt2spk):
        name, _, speaker = (part.strip() for part in line.replace("\t", " ").rpartition(" "))
        if not name:
            raise SettingError(f"--utt2spk: {place} is {line!r}: each line must be NAME SPEAKER")
        if speakers.setdefault(name, speaker) != speaker:
            raise SettingError(f"--utt2spk: {utt2spk} names two speakers of {name!r}: {speakers[name]} and {speaker}")
    if not speakers:
        raise SettingError(f"--utt2spk: {utt2spk} is empty: each line must be NAME SPEAKER")
    return speakers


def _check_stems(stems: Sequence[str], speakers: Mapping[str, str]) -> None:
    """Check that files have different names, and that each has a speaker, or its channels have."""
    twice = [stem for stem, count in Counter(stems).items() if count > 1]
    if twice:
        raise SettingError(
            f"--utt2spk names recordings by their file names, and two files are {twice[0]!r}: rename one"
        )
    for stem in stems:
        if not any(own == stem or own.startswith(f"{stem}-") for own in speakers):
            raise unnamed(stem)


def _refuse(model: Path, adapt: bool, given: Mapping[str, object]) -> None:
    """Refuse options that would change the contents of an export, or need a system that it does not hold."""
    if adapt:
        raise SettingError(
            f"--adapt: {model} is an export folder, which recognises each recording by itself: give the run's folder"
        )
    wrong = [f"--{name}" for name, value in given.items() if value not in (None, [])]
    if wrong:
        raise SettingError(f"{', '.join(wrong)}: fixed in an export folder; export the run again with these options")


def _check_names(files: list[str], out: Path | None, channels: Channels) -> None:
    """Refuse missing files, and files that would be read or written twice, before anything is done."""
    if not any(name == STDIN or Path(name).is_file() for name in files):
        first = repr(readable(files[0]))
        several = f"none of the {counted(len(files), 'file')} exists; the first is {first}"
        raise SettingError(several if len(files) > 1 else f"there is no file {first}")
    if out is not None:
        folder_to_write(out, "--out")
    names = Counter(files if out is None else [stem_of(name) for name in files])
    twice = [name for name, count in names.items() if count > 1]
    if out is not None and channels == "each":  # channel A of call is call-A
        twice += [name for name in names if is_of(name, names, itself=False)]
    if twice and (out is not None or STDIN in twice):
        raise SettingError(f"{readable(twice[0])!r} would be read or written twice: rename the files, or run twice")


def _write(form: Format, out: Path | None, several: bool, found: Transcript, told: ToldOnce) -> None:
    text = FORMATS[form](found)
    shown = f"{readable(found.source)}, channel {found.channel}" if found.channel else readable(found.source)
    for note in found.notes:
        if told.is_new(f"{shown}: {note}", re.sub(r"\d", "", note)):
            say(f"murmur: {shown}: {note}", err=True)
    if out is None:
        named = form == "text" and (several or found.channel)
        typer.echo(printable(f"{shown}: {text}" if named else text), nl=False)
        return
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / f"{recording_name(found.source, found.channel)}{SUFFIXES[form]}", text.encode())
