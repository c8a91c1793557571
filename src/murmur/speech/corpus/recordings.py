"""Recordings of any kind for recognition: files and streams, a channel or the mean of all, resampled, cut at silences.

Shapes: samples_S float32 in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
import soxr

from murmur.speech.corpus.channel_mean import has_signal, mixed
from murmur.speech.corpus.containers import W64_MAGIC
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.cut_short import fault_of, lacks
from murmur.speech.corpus.layout import CUT_SHORT, LOOKED_AT
from murmur.speech.corpus.mp3 import begins_as_mp3, has_frames
from murmur.speech.corpus.sound_file import open_sound
from murmur.speech.corpus.sphere import MAGIC, REMEDY, is_shortened

HEADERS = (
    b"RIFF",
    b"RIFX",
    b"RF64",
    W64_MAGIC,
    b"fLaC",
    b"OggS",
    b"FORM",
    b"ID3",
    b"caff",
    b".snd",
    b"Creative Voice",
    MAGIC,
)
PAUSE_SECONDS = 0.3  # length of the quietest stretch, in which a long recording is cut
STEP_SECONDS = 0.01
LARGEST = 2.0**31  # of a sample: integers of 32 bits in a file of floats; the square of more is none of float32
AUDIBLE = 1e-3  # of full scale, -60 dB


@dataclass(frozen=True, eq=False)
class Recording:
    """One channel of audio at the rate of the model.

    Attributes:
        samples: samples (S,) at rate_hz.
        rate_hz: rate of `samples`.
        native_hz: rate of the file.
        channels: number of channels of the file; several were averaged if `channel` is None.
        channel: channel of the file, from 0.
        changes: description of the changes made to the file; empty if there were none.
    """

    samples: np.ndarray
    rate_hz: int
    native_hz: int
    channels: int
    channel: int | None = None
    changes: str = ""

    @property
    def seconds(self) -> float:
        """Length."""
        return len(self.samples) / self.rate_hz

    @property
    def has_sound(self) -> bool:
        """False for digital silence, or the noise of a muted microphone: no sample reaches -60 dB of full scale."""
        return bool(np.abs(self.samples).max(initial=0.0) >= AUDIBLE)


Channels = Literal["average", "each"]


def read_recording(path: Path, rate_hz: int) -> Recording:
    """A file that libsndfile reads: WAV, FLAC, Ogg, MP3, SPHERE and others; several channels are averaged.

    Raises:
        CorpusError: the file is missing, not audio, damaged, cut short, or holds values that are not finite.
    """
    (found,) = read_channels(path, rate_hz, "average")
    return found


def read_channels(path: Path, rate_hz: int, channels: Channels) -> list[Recording]:
    """The channels of a file, averaged or each; raises the errors of `read_recording`."""
    if not path.is_file():
        raise CorpusError(f"{path} is not a file" if path.exists() else f"{path}: there is no such file")
    return _read(path, str(path), rate_hz, channels)


def read_stream(
    content: bytes,
    rate_hz: int,
    raw_hz: int | None,
    name: str = "standard input",
    channels: Channels = "average",
) -> list[Recording]:
    """A whole stream: a file by its header, or raw 16-bit little-endian samples of one channel at `raw_hz`.

    Raises:
        CorpusError: the stream is empty, has neither header nor rate, ends in half a sample, or as in `read_recording`.
    """
    if content.startswith(HEADERS) or begins_as_mp3(content) or (raw_hz is None and has_frames(content[:LOOKED_AT])):
        return _read(content, name, rate_hz, channels)
    if not content:
        raise CorpusError(f"{name} is empty: has the program before the pipe failed?")
    if raw_hz is None:
        raise CorpusError(f"{name} has no audio file header: give --rate for raw 16-bit samples of one channel")
    if len(content) % 2:
        raise CorpusError(f"{name}: {len(content)} bytes are not a whole number of 16-bit samples: is it cut short?")
    samples_S = np.frombuffer(content, "<i2").astype(np.float32) / 32768
    return _channels_of(samples_S[:, None], raw_hz, rate_hz, name, channels)


def _read(source: Path | bytes, name: str, rate_hz: int, channels: Channels) -> list[Recording]:
    try:
        with open_sound(source) as sound:
            fault = fault_of(sound)
            # Streams one behind the other may differ in rates and channels.
            streams = [(each.read_all(), each) for each in sound.streams if fault is None]
    except (soundfile.SoundFileError, OSError, MemoryError) as error:
        if isinstance(source, Path) and is_shortened(source):
            raise CorpusError(f"{name} cannot be read: {REMEDY}, and convert it") from error
        raise CorpusError(f"{name} cannot be read as audio ({error}): is it damaged, or not an audio file?") from error
    if any(lacks(each.frames, len(found_SC), each.rate_hz) for found_SC, each in streams):
        fault = CUT_SHORT
    if fault is not None:
        raise CorpusError(f"{name} {fault}")
    parts = [_channels_of(found_SC, each.rate_hz, rate_hz, name, channels) for found_SC, each in streams]
    if len({len(part) for part in parts}) > 1:
        raise CorpusError(f"{name} has streams with different numbers of channels: leave out --channels each")
    return [_joined(of_channel) for of_channel in zip(*parts, strict=True)]


def _channels_of(
    samples_SC: np.ndarray, native_hz: int, rate_hz: int, name: str, channels: Channels
) -> list[Recording]:
    """The channels of one stream, averaged or each."""
    usable_S = (np.abs(samples_SC) <= LARGEST).all(1)
    if not usable_S.all():
        first = int(np.argmin(usable_S))
        value = next(f"{v:g}" for v in samples_SC[first] if not abs(v) <= LARGEST)
        what = "that is not a number" if value == "nan" else f"of {value}"
        raise CorpusError(f"{name} holds a value {what} at {first / native_hz:.3f} s: convert it to 16-bit samples")
    count = samples_SC.shape[1]
    mono_S, how = mixed(samples_SC) if channels == "average" else (samples_SC[:, 0], "")
    done = [how] if how else []
    done += [f"resampled from {native_hz} to {rate_hz} Hz"] if native_hz != rate_hz else []
    if count == 1 or channels == "average":
        return [Recording(_resampled(mono_S, native_hz, rate_hz), rate_hz, native_hz, count, None, ", ".join(done))]
    sides = (_resampled(samples_SC[:, n], native_hz, rate_hz) for n in range(count))
    return [Recording(side_S, rate_hz, native_hz, count, n, ", ".join(done)) for n, side_S in enumerate(sides)]


def _joined(parts: Sequence[Recording]) -> Recording:
    """One recording of a channel of streams one behind the other."""
    if len(parts) == 1:
        return parts[0]
    done = [f"{len(parts)} streams joined", *dict.fromkeys(part.changes for part in parts if part.changes)]
    return replace(parts[0], samples=np.concatenate([part.samples for part in parts]), changes=", ".join(done))


def _resampled(samples_S: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    if from_hz == to_hz or not len(samples_S):
        return np.ascontiguousarray(samples_S)
    if not has_signal(samples_S):  # a constant would ring at its ends
        return np.full(max(round(len(samples_S) * to_hz / from_hz), 1), samples_S[0], np.float32)
    return np.ascontiguousarray(soxr.resample(samples_S, from_hz, to_hz), dtype=np.float32)


def cut_at_silences(samples_S: np.ndarray, rate_hz: int, longest_seconds: float) -> list[tuple[int, int]]:
    """Pieces [first, end) of at most `longest_seconds` that cover everything.

    A piece ends in the middle of the quietest 0.3 s of its second half, so words are cut only in speech without pauses.

    Raises:
        ValueError: `longest_seconds` is below a second.
    """
    if longest_seconds < 1:
        raise ValueError(f"pieces of {longest_seconds} s: give at least 1 s, or words will be cut")
    longest = int(min(longest_seconds * rate_hz, len(samples_S)))  # which may be infinite
    pieces, first = [], 0
    while len(samples_S) - first > longest:
        half = first + longest // 2
        end = half + _quietest(samples_S[half : first + longest], rate_hz)
        pieces.append((first, end))
        first = end
    return [*pieces, (first, len(samples_S))]


def _quietest(samples_S: np.ndarray, rate_hz: int) -> int:
    """The middle of the quietest stretch; among equals, of the middle one."""
    step = max(int(STEP_SECONDS * rate_hz), 1)
    steps = len(samples_S) // step
    powers = np.square(samples_S[: steps * step].astype(np.float64)).reshape(steps, step).sum(1)
    width = min(round(PAUSE_SECONDS / STEP_SECONDS), steps)
    sums = np.convolve(powers, np.ones(width), mode="valid")
    least = np.flatnonzero(sums <= sums.min() + 1e-9)
    return int((least[len(least) // 2] + width / 2) * step)
