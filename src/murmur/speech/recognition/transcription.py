"""Transcription of the files of a command line, each recording by itself or all recordings of a speaker together."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import typer
from rich.console import Console

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_read, folder_to_write, not_inputs
from murmur.core.printable import printable, say
from murmur.core.whole_files import write_whole
from murmur.execution.executors import Jobs, engine_of
from murmur.execution.messages import ToldOnce, told_once
from murmur.execution.processes import bar_of, in_order
from murmur.execution.workers import WorkerDied
from murmur.run.saved_model import Choice, model_to_read
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.file_content import nfc, numbered_lines
from murmur.speech.corpus.recordings import Channels, Recording, read_channels, read_stream
from murmur.speech.decoding.transcript import FORMATS, STDIN, SUFFIXES, Transcript, readable, stem_of
from murmur.speech.recognition.export import exported_transcriber, looks_exported
from murmur.speech.recognition.trained_run import TrainedRun, Wanted, open_run
from murmur.speech.recognition.transcriber import Transcriber, adapted_transcriber, graph_search, name_of, transcriber
from murmur.speech.recognition.tuning import SearchRequest

Format = Literal["text", "json", "ctm", "srt"]


@dataclass(frozen=True)
class Unit:
    """Files that are transcribed together."""

    files: tuple[str, ...]
    speakers: Mapping[str, str] = field(default_factory=dict)  # of recordings; empty if all are of one speaker
    speaker: str | None = None  # speaker whose recordings are transcribed; None transcribes each recording by itself
    stream: bytes = b""  # content of the file -


@dataclass(frozen=True)
class Made:
    """Results of a unit: transcripts, {file that could not be read: reason}, and names of recordings without sound."""

    transcripts: tuple[Transcript, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    silent: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """Files to transcribe, the ways to read them, and the place and form of the transcripts."""

    files: Sequence[str]
    speakers: Mapping[str, str] | None = None  # of recordings; empty if all are of one speaker; None adapts to none
    rate: int | None = None  # Hz, of a stream of raw samples
    channels: Channels = "average"
    form: Format = "text"
    out: Path | None = None  # standard output
    jobs: Jobs = 1

    @cached_property
    def units(self) -> list[Unit]:
        """Files of each speaker in the order of their first files, or each file by itself.

        Raises:
            SettingError: the speaker of a file is not named, or two files have the same name.
        """
        if self.speakers is None:
            return [Unit((name,)) for name in self.files]
        if not self.speakers:
            return [Unit(tuple(self.files), speaker="")]
        if twice := _twice(nfc(stem_of(name)) for name in self.files):
            raise SettingError(
                f"--utt2spk names recordings by their file names, and two files are {twice[0]!r}: rename one"
            )
        found: dict[str, list[str]] = {}
        for name in self.files:
            stem = nfc(stem_of(name))
            own = [stem] if self.channels == "average" else [each for each in self.speakers if is_of(each, [stem])]
            if not own or any(each not in self.speakers for each in own):
                raise _unnamed(stem)
            for speaker in dict.fromkeys(self.speakers[each] for each in own):
                found.setdefault(speaker, []).append(name)
        return [Unit(tuple(names), self.speakers, speaker) for speaker, names in found.items()]

    @property
    def processes(self) -> Jobs:
        """The processes, of this host at most one for each unit."""
        engine = engine_of(self.jobs)
        return min(engine.count, len(self.units)) if engine.is_here else engine

    @property
    def is_done_here(self) -> bool:
        """True if this process transcribes."""
        return engine_of(self.processes).is_this_process

    def read(self, name: str, rate_hz: int, stream: bytes) -> list[Recording]:
        """Read the recordings of a file, or of the stream; raises the errors of `read_channels`."""
        if name == STDIN:
            return read_stream(stream, rate_hz, self.rate, channels=self.channels)
        return read_channels(Path(name), rate_hz, self.channels)

    def write(self, found: Transcript, told: ToldOnce) -> None:
        """Write a transcript, and its notes on standard error.

        A text on standard output follows the name of its recording if there are several, or several channels.
        """
        text = FORMATS[self.form](found)
        shown = f"{readable(found.source)}, channel {found.channel}" if found.channel else readable(found.source)
        for note in found.notes:
            if told.is_new(f"{shown}: {note}", re.sub(r"\d", "", note)):
                say(f"murmur: {shown}: {note}", err=True)
        if self.out is not None:
            name = f"{_recording_name(found.source, found.channel)}{SUFFIXES[self.form]}"
            write_whole(self.out / name, text.encode())
            return
        named = self.form == "text" and (len(self.files) > 1 or found.channel)
        typer.echo(printable(f"{shown}: {text}" if named else text), nl=False)


def is_of(name: str, stems: Iterable[str], itself: bool = True) -> bool:
    """True if a name is that of a channel of a file with one of these stems, or such a stem `itself`."""
    return re.fullmatch(f"({'|'.join(map(re.escape, stems))})(-([AB]|[0-9]+)){'?' if itself else ''}", name) is not None


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _unnamed(own: str) -> SettingError:
    return SettingError(f"--utt2spk has no line for {readable(own)!r}: name the speaker of every recording")


def _recording_name(source: str, channel: str) -> str:
    """Name of a recording: its file without folder and suffix, and its channel if that has a transcript of its own."""
    return f"{stem_of(source)}-{channel}" if channel else stem_of(source)


def transcribe_with_export(inputs: Inputs, model: Path, beams: Mapping[str, float], longest: float) -> int:
    """Transcribe with an export folder; return the number of unreadable files."""
    here = exported_transcriber(model, beams, longest)
    several = partial(exported_transcriber, model, beams, longest, threads=1)
    files = sorted(filter(Path.is_file, model.iterdir()))
    return _do_all(inputs, (lambda: here) if inputs.is_done_here else several, files)


def transcribe_with_run(inputs: Inputs, run: TrainedRun, wanted: Wanted, request: SearchRequest, longest: float) -> int:
    """Transcribe with a run, adapted to its speakers if they are given; return the number of unreadable files.

    Raises:
        SettingError: a network's weights are chosen, and a Gaussian system transcribes.
    """
    make: Callable[[TrainedRun], Transcriber]
    files = [run.stem.with_suffix(".safetensors")]
    if inputs.speakers is not None and run.acoustic.speakers is None:
        if wanted.choice is not None:
            raise SettingError(
                "--weights: --adapt transcribes with the Gaussian system of this run: leave one of them out"
            )
        make = partial(adapted_transcriber, request=request, longest_seconds=longest)
        here = make(run)  # builds the graph
        name = "" if run.recogniser.adapted is None else run.recogniser.adapted.name
        say(f"murmur: --adapt: the Gaussian system {name} in place of the network", err=True)
        return _do_all(inputs, (lambda: here) if inputs.is_done_here else partial(_opened, wanted, make), files)
    say(f"murmur: {run.weights}", err=True)
    search, options = run.searched(request)
    graph = None if search is None else graph_search(search, options)
    make = partial(transcriber, graph=graph, longest_seconds=longest)
    return _do_all(inputs, (lambda: make(run)) if inputs.is_done_here else partial(_opened, wanted, make), files)


def _opened(wanted: Wanted, make: Callable[[TrainedRun], Transcriber]) -> Transcriber:
    """Open a run in a process of its own."""
    return make(open_run(replace(wanted, jobs=1)))


def _do_all(inputs: Inputs, opened: Callable[[], Transcriber], files: Sequence[Path]) -> int:
    """Transcribe all files with a progress bar; return the number of unreadable ones."""
    failed: set[str] = set()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    count = len({name for unit in inputs.units for name in unit.files})
    results = made(inputs, opened, sys.stdin.buffer.read, files)
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


def made(
    inputs: Inputs, opened: Callable[[], Transcriber], stream: Callable[[], bytes], files: Sequence[Path] = ()
) -> Generator[tuple[Unit, Made], None, None]:
    """Yield each unit with its results, in their order; a file that cannot be read ends no batch.

    `opened` opens the model in each process, and must pickle if there are several; `stream` reads the stream -. Workers
    elsewhere must see the same `files` of the model.
    """
    with_stream = (replace(unit, stream=stream()) if STDIN in unit.files else unit for unit in inputs.units)
    with closing(in_order(partial(_work, opened, inputs), with_stream, inputs.processes, files)) as results:
        for unit, result in zip(inputs.units, results, strict=True):
            if isinstance(result, WorkerDied):
                yield unit, Made(failed={name: f"{name}: {result}" for name in unit.files})
            else:
                yield unit, result


def _work(opened: Callable[[], Transcriber], inputs: Inputs) -> Callable[[Unit], Made]:
    """Open the model in the process that transcribes."""
    return partial(_transcribed, opened(), inputs)


def _transcribed(work: Transcriber, inputs: Inputs, unit: Unit) -> Made:
    failed: dict[str, str] = {}
    silent: list[str] = []
    groups: dict[int, list[tuple[Recording, str]]] = {}
    for name in unit.files:
        try:
            recordings = inputs.read(name, work.rate_hz, unit.stream)
        except CorpusError as error:
            failed[name] = str(error)
            continue
        for recording in recordings:
            own = nfc(_recording_name(name, name_of(recording)))
            if unit.speakers and own not in unit.speakers:
                raise _unnamed(own)
            if unit.speakers and unit.speakers[own] != unit.speaker:
                continue
            alone = unit.speaker is None or not recording.has_sound  # silence would change a speaker's means
            if unit.speaker is not None and alone:
                silent.append(own)
            groups.setdefault(len(groups) + 1 if alone else 0, []).append((recording, name))
    return Made(tuple(each for together in groups.values() for each in work(together)), failed, tuple(silent))


def check_files(model: Path, weights: Choice | None, inputs: Inputs, read: Sequence[str | Path | None]) -> None:
    """Check that the model exists, that the files do, and that no transcript replaces a file that is read.

    Raises:
        SettingError: they do not, a speaker is not named, or transcripts could not be told apart.
    """
    files, channels = inputs.files, inputs.channels
    _ = inputs.units  # with the speaker of each
    if not looks_exported(model):
        model_to_read(model, weights)
    if inputs.rate is not None and STDIN not in files:
        raise SettingError("--rate is for a stream of raw samples on -: files name their own rates, leave it out")
    if not any(name == STDIN or Path(name).is_file() for name in files):
        first = repr(readable(files[0]))
        several = f"none of the {counted(len(files), 'file')} exists; the first is {first}"
        raise SettingError(several if len(files) > 1 else f"there is no file {first}")
    stems = [stem_of(name) for name in files]
    if inputs.out is None:
        twice = [name for name in _twice(files) if name == STDIN]
    else:
        folder_to_write(inputs.out, "--out")
        twice = _twice(stems)
        if channels == "each":  # channel A of call is call-A
            twice += [name for name in dict.fromkeys(stems) if is_of(name, stems, itself=False)]
    if twice:
        raise SettingError(f"{readable(twice[0])!r} would be read or written twice: rename the files, or run twice")
    if inputs.out is None:
        _check_form(inputs)
        return
    paths = [Path(each) for each in (*files, *read) if each is not None]
    if channels == "each":
        stems += [path.stem for path in paths if is_of(path.stem, stems, itself=False)]
    not_inputs((inputs.out / f"{stem}{SUFFIXES[inputs.form]}" for stem in stems), "--out", paths)


def _check_form(inputs: Inputs) -> None:
    """Check that transcripts on standard output can be told apart."""
    if inputs.form == "srt" and (len(inputs.files) > 1 or inputs.channels == "each"):
        raise SettingError("--format srt: subtitles are of one recording: give --out FOLDER, which has a file for each")
    if inputs.form == "ctm" and (twice := _twice(map(stem_of, inputs.files))):
        raise SettingError(
            f"--format ctm names recordings by their files without folder and suffix; two are {readable(twice[0])!r}:"
            " rename one, or run twice"
        )


def check_speakers(adapt: bool, utt2spk: Path | None, channels: Channels) -> Mapping[str, str] | None:
    """Return {name: speaker} of --utt2spk, empty without it; None without --adapt.

    The file has lines NAME SPEAKER; names may hold spaces.

    Raises:
        SettingError: the options do not fit together, or the file is missing or malformed.
    """
    if utt2spk is None:
        if adapt and channels == "each":
            raise SettingError("--adapt --channels each: each channel has a speaker, so name the speakers by --utt2spk")
        return {} if adapt else None
    if not adapt:
        raise SettingError("--utt2spk names the speakers that --adapt adapts to: give --adapt too")
    file_to_read(utt2spk, "--utt2spk")
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


def refuse_fixed(model: Path, adapt: bool, given: Sequence[str]) -> None:
    """Refuse options that would change the contents of an export, or need a system that it does not hold."""
    if adapt:
        raise SettingError(
            f"--adapt: {model} is an export folder, which recognises each recording by itself: give the run's folder"
        )
    if given:
        raise SettingError(f"{', '.join(given)}: fixed in an export folder; export the run again with these options")
