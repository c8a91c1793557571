"""Transcribes many files in their order: each by itself, or all recordings of a speaker together."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from murmur.core.errors import SettingError
from murmur.execution.ordered import in_order
from murmur.execution.workers import WorkerDied
from murmur.recognition.adapted_transcriber import adapted_transcriber
from murmur.recognition.exported_model import exported_transcriber
from murmur.recognition.trained_run import Wanted, open_run
from murmur.recognition.transcriber import SearchedGraph, Transcriber, name_of, transcriber
from murmur.recognition.tuning import SearchRequest
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.recordings import Channels, Recording, read_channels, read_stream
from murmur.speech.corpus.text_lines import nfc
from murmur.speech.decoding.transcript import STDIN, Transcript, readable, stem_of

OfSpeaker = Callable[[Sequence[tuple[Recording, str]]], list[Transcript]]  # all recordings of one, with their sources


@dataclass(frozen=True)
class Opened:
    """An opened model: the sample rate that it takes, and its transcription of one speaker's recordings."""

    rate_hz: int
    of_speaker: OfSpeaker

    @staticmethod
    def of(work: Transcriber) -> Opened:
        """The opened model of a transcriber."""
        return Opened(work.front.rate_hz, work.of_speaker)


def opened_network(wanted: Wanted, graph: SearchedGraph | None, longest_seconds: float) -> Opened:
    """Open a run in a process of its own."""
    return Opened.of(transcriber(open_run(replace(wanted, jobs=1)), graph, longest_seconds))


def opened_gaussians(wanted: Wanted, request: SearchRequest, longest_seconds: float) -> Opened:
    """Open the speaker-adapted Gaussian system of a run in a process of its own."""
    adapted = adapted_transcriber(open_run(replace(wanted, jobs=1)), request, longest_seconds)
    return Opened(adapted.front.rate_hz, adapted)


def opened_export(folder: Path, given: Mapping[str, float | None], longest_seconds: float) -> Opened:
    """Open an exported folder in a process of its own."""
    return Opened.of(exported_transcriber(folder, given, longest_seconds, threads=1))


@dataclass(frozen=True)
class Reading:
    """The way to read files: the sample rate of a raw stream in Hz, and the use of channels."""

    rate: int | None = None
    channels: Channels = "average"

    def __call__(self, name: str, rate_hz: int, stream: bytes) -> list[Recording]:
        """Read the recordings of a file, or of the stream; raises the errors of `read_channels`."""
        if name == STDIN:
            return read_stream(stream, rate_hz, self.rate, channels=self.channels)
        return read_channels(Path(name), rate_hz, self.channels)


@dataclass(frozen=True)
class Unit:
    """Files that are transcribed together.

    Attributes:
        files: names of files.
        speakers: {name of a recording: its speaker}; empty if all recordings are of one speaker.
        speaker: speaker whose recordings are transcribed; None transcribes each recording by itself.
        stream: content of the file -.
    """

    files: tuple[str, ...]
    speakers: Mapping[str, str] = field(default_factory=dict)
    speaker: str | None = None
    stream: bytes = b""


@dataclass(frozen=True)
class Made:
    """Results of a unit: transcripts, {file that could not be read: reason}, and names of recordings without sound."""

    transcripts: tuple[Transcript, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    silent: tuple[str, ...] = ()


def units_of(files: Sequence[str], speakers: Mapping[str, str] | None, channels: Channels) -> list[Unit]:
    """Units of files: those of each speaker in the order of their first files, or each file without `speakers`.

    Raises:
        SettingError: the speaker of a file is not named.
    """
    if speakers is None:
        return [Unit((name,)) for name in files]
    if not speakers:
        return [Unit(tuple(files), speaker="")]
    found: dict[str, list[str]] = {}
    for name in files:
        stem = nfc(stem_of(name))
        own = [stem] if channels == "average" else [each for each in speakers if is_of(each, [stem])]
        if not own or any(each not in speakers for each in own):
            raise unnamed(stem)
        for speaker in dict.fromkeys(speakers[each] for each in own):
            found.setdefault(speaker, []).append(name)
    return [Unit(tuple(names), speakers, speaker) for speaker, names in found.items()]


def is_of(name: str, stems: Iterable[str], itself: bool = True) -> bool:
    """True if a name is that of a channel of a file with one of these stems, or such a stem `itself`."""
    return re.fullmatch(f"({'|'.join(map(re.escape, stems))})(-([AB]|[0-9]+)){'?' if itself else ''}", name) is not None


def unnamed(own: str) -> SettingError:
    """Return the error for a recording whose speaker is not named."""
    return SettingError(f"--utt2spk has no line for {readable(own)!r}: name the speaker of every recording")


def recording_name(source: str, channel: str) -> str:
    """Name of a recording: its file without folder and suffix, and its channel if that has a transcript of its own."""
    return f"{stem_of(source)}-{channel}" if channel else stem_of(source)


def made(
    units: Sequence[Unit], opened: Callable[[], Opened], reading: Reading, stream: Callable[[], bytes], jobs: int
) -> Generator[tuple[Unit, Made], None, None]:
    """Yield each unit with its results, in their order; a file that cannot be read ends no batch.

    Args:
        units: what is transcribed.
        opened: function that opens the model; it must pickle if there are several jobs.
        reading: the way to read files.
        stream: function that reads the stream -, which is called when it is needed.
        jobs: number of processes.

    Raises:
        SettingError: the speaker of a recording is not named.
        WorkerDied: a process died while it loaded the model.
    """
    with_stream = (replace(unit, stream=stream()) if STDIN in unit.files else unit for unit in units)
    with closing(in_order(_Opener(opened, reading), with_stream, min(jobs, len(units)))) as results:
        for unit, result in zip(units, results, strict=True):
            if isinstance(result, WorkerDied):
                died = {name: f"{name}: {result}" for name in unit.files}
                yield unit, Made(failed=died)
            else:
                yield unit, result


@dataclass(frozen=True)
class _Opener:
    """Opens the model in the process that transcribes."""

    opened: Callable[[], Opened]
    reading: Reading

    def __call__(self) -> _Work:
        return _Work(self.opened(), self.reading)


@dataclass(frozen=True)
class _Work:
    """Reads and transcribes a unit."""

    opened: Opened
    reading: Reading

    def __call__(self, unit: Unit) -> Made:
        failed: dict[str, str] = {}
        silent: list[str] = []
        groups: dict[int, list[tuple[Recording, str]]] = {}
        for name in unit.files:
            try:
                recordings = self.reading(name, self.opened.rate_hz, unit.stream)
            except CorpusError as error:
                failed[name] = str(error)
                continue
            for recording in recordings:
                own = nfc(recording_name(name, name_of(recording)))
                if unit.speakers and own not in unit.speakers:
                    raise unnamed(own)
                if unit.speakers and unit.speakers[own] != unit.speaker:
                    continue
                alone = unit.speaker is None or not recording.has_sound  # silence would change a speaker's means
                if unit.speaker is not None and alone:
                    silent.append(own)
                groups.setdefault(len(groups) + 1 if alone else 0, []).append((recording, name))
        found = [each for together in groups.values() for each in self.opened.of_speaker(together)]
        return Made(tuple(found), failed, tuple(silent))
