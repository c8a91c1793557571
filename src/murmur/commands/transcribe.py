"""`murmur transcribe`."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

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
from murmur.engine.checkpoints.checkpoint import write_whole
from murmur.recognition.adapted_transcriber import adapted_transcriber
from murmur.recognition.exported_model import exported_transcriber, looks_exported
from murmur.recognition.trained_run import TrainedRun, Wanted, open_run
from murmur.recognition.transcriber import Transcriber, name_of, transcriber
from murmur.recognition.tuning import SearchRequest
from murmur.run.saved_model import Choice
from murmur.run.task_checks import model_to_read
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.recordings import Channels, Recording, read_channels, read_stream
from murmur.speech.decoding.transcript import FORMATS, STDIN, SUFFIXES, Transcript, readable, stem_of

app = typer.Typer(add_completion=False)
SOME_FAILED = 3
Format = Literal["text", "json", "ctm", "srt"]
OfSpeaker = Callable[[Sequence[tuple[Recording, str]]], list[Transcript]]  # all recordings of one, with their sources
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


HELP = """Transcribe recordings, with the time and the confidence of each word.

Example: murmur transcribe runs/demo/one-learner talk.flac --format srt --out subtitles

A finished run and an export folder (murmur export) can be moved; they need neither the corpus nor the cache.

A stream: ffmpeg -i talk.mp4 -f wav - | murmur transcribe runs/demo/one-learner - --format json

A vocabulary of your own: murmur transcribe runs/demo/one-learner talk.flac --grammar own.jsgf

A call with a speaker on each channel: murmur transcribe runs/demo/one-learner call.sph --channels each

One speaker's recordings, adapted to the speaker in two passes: murmur transcribe runs/own talk-*.flac --adapt

Channels are averaged and other sample rates are resampled; a line on standard error says so. Unreadable files are
reported, the others are transcribed, and the exit status is 3.
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
) -> None:
    """Transcribe recordings, see HELP."""
    speakers = check_speakers(adapt, utt2spk, channels)
    _check(model, weights, files, rate, out, channels, form, (grammar, lm, words, lexicon, dev, utt2spk))
    beams = {"beam": beam, "lattice_beam": lattice_beam}
    given = {"acoustic_scale": scale, "insertion_penalty": penalty, **beams}
    inputs = Inputs(files, partial(_read, rate=rate, channels=channels), partial(_write, form, out, len(files) > 1))
    if looks_exported(model):
        own: dict[str, object] = {"grammar": grammar, "lm": lm, "words": words, "lexicon": lexicon, "dev": dev}
        own |= {"scale": scale, "penalty": penalty, "experiment": experiment, "set": settings, "weights": weights}
        _refuse(model, adapt, own | {"guess": None if guess == "auto" else guess, "trust": trust or None})
        return _end(_do_all(inputs, exported_transcriber(model, beams, longest)), len(files))
    request = SearchRequest(chosen(grammar, lm, words, lexicon, guess), dev, given)
    run = open_run(Wanted(model, experiment, tuple(settings or ()), request, trust, weights))
    check_weights(run, weights, adapt)
    return _end(_do_run(inputs, run, request, longest, speakers), len(files))


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
        files: names of files.
        read: function from a name and a sample rate in Hz to the recordings of a file.
        write: function that writes the transcript of a recording.
    """

    files: Sequence[str]
    read: Callable[[str, int], list[Recording]]
    write: Callable[[Transcript], None]


def _do_run(
    inputs: Inputs, run: TrainedRun, request: SearchRequest, longest: float, speakers: Mapping[str, str] | None
) -> int:
    """Transcribe with a run, adapted to its speakers if they are given; return the number of unreadable files."""
    if speakers is not None and run.acoustic.speakers is None:
        adapted = adapted_transcriber(run, request, longest)
        typer.echo(f"murmur: --adapt: the Gaussian system {adapted.gaussians.name} in place of the network", err=True)
        return _do_speakers(inputs, adapted.front.rate_hz, adapted, speakers)
    typer.echo(f"murmur: {run.weights}", err=True)
    work = transcriber(run, *run.searched(request), longest)
    if speakers is not None:
        return _do_speakers(inputs, work.front.rate_hz, work.of_speaker, speakers)
    return _do_all(inputs, work)


def _end(failed: int, count: int) -> None:
    """End with a status of its own if files could not be read."""
    if failed:
        typer.echo(f"murmur: {failed} of {count} could not be read", err=True)
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
            stems += [path.stem for path in inputs if _channel_of(stems).fullmatch(path.stem)]
        not_inputs((out / f"{stem}{SUFFIXES[form]}" for stem in stems), "--out", inputs)


def _do_all(inputs: Inputs, work: Transcriber) -> int:
    """Transcribe file after file with a progress bar; return the number of unreadable files."""
    failed = 0
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with Progress(console=console, disable=len(inputs.files) < 2) as progress:
        bar = progress.add_task("transcribing", total=len(inputs.files))
        for name in inputs.files:
            progress.update(bar, description=escape(readable(Path(name).name)))
            try:
                for recording in inputs.read(name, work.front.rate_hz):
                    inputs.write(work(recording, name))
            except CorpusError as error:
                failed += 1
                console.print(f"murmur: {readable(str(error))}", markup=False)
            progress.advance(bar)
    return failed


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
    try:
        lines = utt2spk.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise SettingError(f"--utt2spk: {utt2spk} is not UTF-8 text: {error}") from error
    rows = [line.strip().rsplit(maxsplit=1) for line in lines if line.strip()]
    if not rows:
        raise SettingError(f"--utt2spk: {utt2spk} is empty: each line must be NAME SPEAKER")
    wrong = [row for row in rows if len(row) != 2]
    if wrong:
        raise SettingError(f"--utt2spk: {utt2spk} has a line {' '.join(wrong[0])!r}: each must be NAME SPEAKER")
    speakers: dict[str, str] = {}
    for name, speaker in rows:
        if speakers.setdefault(name, speaker) != speaker:
            raise SettingError(f"--utt2spk: {utt2spk} names two speakers of {name!r}: {speakers[name]} and {speaker}")
    return speakers


def _do_speakers(inputs: Inputs, rate_hz: int, work: OfSpeaker, speakers: Mapping[str, str]) -> int:
    """Read all files, then transcribe speaker after speaker; return the number of unreadable files.

    Raises:
        SettingError: the speaker of a recording is not named, or two files have the name that tells the speaker.
    """
    if speakers:
        _check_stems(list(map(stem_of, inputs.files)), speakers)
    failed = 0
    groups: dict[tuple[str, int], list[tuple[Recording, str]]] = {}
    for name in inputs.files:
        try:
            recordings = inputs.read(name, rate_hz)
        except CorpusError as error:
            failed += 1
            typer.echo(f"murmur: {readable(str(error))}", err=True)
            continue
        for recording in recordings:
            group = _group(_named(name, name_of(recording)), recording, speakers, len(groups))
            groups.setdefault(group, []).append((recording, name))
    for together in groups.values():
        for found in work(together):
            inputs.write(found)
    return failed


def _check_stems(stems: Sequence[str], speakers: Mapping[str, str]) -> None:
    """Check that files have different names, and that each has a speaker, or its channels have."""
    twice = [stem for stem, count in Counter(stems).items() if count > 1]
    if twice:
        raise SettingError(
            f"--utt2spk names recordings by their file names, and two files are {twice[0]!r}: rename one"
        )
    for stem in stems:
        if not any(own == stem or own.startswith(f"{stem}-") for own in speakers):
            raise _unnamed(stem)


def _group(own: str, recording: Recording, speakers: Mapping[str, str], groups: int) -> tuple[str, int]:
    """Speaker of a recording and 0; a recording without sound, which would change means, has a number of its own."""
    if speakers and own not in speakers:
        raise _unnamed(own)
    if recording.has_sound:
        return speakers.get(own, ""), 0
    typer.echo(f"murmur: {readable(own)} has no sound, and is transcribed by itself", err=True)
    return speakers.get(own, ""), groups + 1


def _unnamed(own: str) -> SettingError:
    return SettingError(f"--utt2spk has no line for {readable(own)!r}: name the speaker of every recording")


def _named(source: str, channel: str) -> str:
    """Name of a recording: its file without folder and suffix, and its channel if that has a transcript of its own."""
    return f"{stem_of(source)}-{channel}" if channel else stem_of(source)


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
        raise SettingError(f"none of the {counted(len(files), 'file')} exists; the first is {readable(files[0])!r}")
    if out is not None:
        folder_to_write(out, "--out")
    names = Counter(files if out is None else [stem_of(name) for name in files])
    twice = [name for name, count in names.items() if count > 1]
    if out is not None and channels == "each":  # channel A of call is call-A
        twice += [name for name in names if _channel_of(names).fullmatch(name)]
    if twice and (out is not None or STDIN in twice):
        raise SettingError(f"{readable(twice[0])!r} would be read or written twice: rename the files, or run twice")


def _channel_of(stems: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of the names that transcripts of the channels of files have."""
    return re.compile(f"({'|'.join(map(re.escape, stems))})-([AB]|[0-9]+)")


def _read(name: str, rate_hz: int, rate: int | None, channels: Channels) -> list[Recording]:
    if name == STDIN:
        return read_stream(sys.stdin.buffer.read(), rate_hz, rate, channels=channels)
    return read_channels(Path(name), rate_hz, channels)


def _write(form: Format, out: Path | None, several: bool, found: Transcript) -> None:
    text = FORMATS[form](found)
    shown = f"{readable(found.source)}, channel {found.channel}" if found.channel else readable(found.source)
    for note in found.notes:
        typer.echo(f"murmur: {shown}: {note}", err=True)
    if out is None:
        named = form == "text" and (several or found.channel)
        typer.echo(f"{shown}: {text}" if named else text, nl=False)
        return
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / f"{_named(found.source, found.channel)}{SUFFIXES[form]}", text.encode())
