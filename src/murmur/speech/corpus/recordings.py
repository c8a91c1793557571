"""Recordings of any kind for recognition: files and streams, a channel or the mean of all, resampled, cut at silences.

Shapes: samples_S float32 in [-1, 1].
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
import soxr

from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.cut_short import CUT_SHORT, fault_of, lacks
from murmur.speech.corpus.mp3 import begins_as_mp3
from murmur.speech.corpus.sound_file import open_sound
from murmur.speech.corpus.sphere import MAGIC, REMEDY, is_shortened

HEADERS = (b"RIFF", b"RIFX", b"RF64", b"fLaC", b"OggS", b"FORM", b"ID3", b"caff", b".snd", MAGIC)
PAUSE_SECONDS = 0.3  # length of the quietest stretch, in which a long recording is cut
STEP_SECONDS = 0.01
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
    """

    samples: np.ndarray
    rate_hz: int
    native_hz: int
    channels: int
    channel: int | None = None

    @property
    def seconds(self) -> float:
        """Length."""
        return len(self.samples) / self.rate_hz

    @property
    def has_sound(self) -> bool:
        """False for digital silence, or the noise of a muted microphone: no sample reaches -60 dB of full scale."""
        return bool(np.abs(self.samples).max(initial=0.0) >= AUDIBLE)

    @property
    def changes(self) -> str:
        """A description of the changes made to the file; empty if there were none."""
        done = [f"{self.channels} channels averaged"] if self.channels > 1 and self.channel is None else []
        done += [f"resampled from {self.native_hz} to {self.rate_hz} Hz"] if self.native_hz != self.rate_hz else []
        return ", ".join(done)


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
    if content.startswith(HEADERS) or begins_as_mp3(content):
        return _read(io.BytesIO(content), name, rate_hz, channels)
    if not content:
        raise CorpusError(f"{name} is empty: has the program before the pipe failed?")
    if raw_hz is None:
        raise CorpusError(f"{name} has no audio file header: give --rate for raw 16-bit samples of one channel")
    if len(content) % 2:
        raise CorpusError(f"{name}: {len(content)} bytes are not a whole number of 16-bit samples: is it cut short?")
    samples_S = np.frombuffer(content, "<i2").astype(np.float32) / 32768
    return [Recording(_resampled(samples_S, raw_hz, rate_hz), rate_hz, raw_hz, 1)]


def _read(source: Path | io.BytesIO, name: str, rate_hz: int, channels: Channels) -> list[Recording]:
    try:
        with open_sound(source) as file:
            # The header of a WAV written to a pipe declares no end, so only files can be found cut short.
            path = source if isinstance(source, Path) else None
            samples_SC, native_hz = file.read(dtype="float32", always_2d=True), file.samplerate
            fault = fault_of(file, path)
            if fault is None and path is not None and lacks(file.frames, len(samples_SC), native_hz):
                fault = CUT_SHORT
            if fault is not None:
                raise CorpusError(f"{name} {fault}")
    except (soundfile.SoundFileError, OSError) as error:
        if isinstance(source, Path) and is_shortened(source):
            raise CorpusError(f"{name} cannot be read: {REMEDY}, and convert it") from error
        raise CorpusError(f"{name} cannot be read as audio ({error}): is it damaged, or not an audio file?") from error
    if not np.isfinite(samples_SC).all():
        where = int(np.argmin(np.isfinite(samples_SC).all(1))) / native_hz
        raise CorpusError(f"{name} holds a value that is not a number at {where:.3f} s: convert it to 16-bit samples")
    count = samples_SC.shape[1]
    if count == 1:
        return [Recording(_resampled(samples_SC[:, 0], native_hz, rate_hz), rate_hz, native_hz, 1)]
    if channels == "average":
        mono_S = samples_SC.mean(1, dtype=np.float32)
        return [Recording(_resampled(mono_S, native_hz, rate_hz), rate_hz, native_hz, count)]
    sides = (_resampled(samples_SC[:, n], native_hz, rate_hz) for n in range(count))
    return [Recording(side_S, rate_hz, native_hz, count, n) for n, side_S in enumerate(sides)]


def _resampled(samples_S: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    if from_hz == to_hz or not len(samples_S):
        return np.ascontiguousarray(samples_S)
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
