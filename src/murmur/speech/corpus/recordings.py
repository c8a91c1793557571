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

from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.layout import CUT_SHORT, LOOKED_AT
from murmur.speech.corpus.mp3 import CONTAINERS, has_frames, is_frame
from murmur.speech.corpus.sound_file import REMEDY, Sound, is_shortened, lacks

HEADERS = (*CONTAINERS, b"fLaC", b"OggS", b"ID3")
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
        channels: number of channels of the file; several were averaged if `channel` is None.
        channel: channel of the file, from 0.
        changes: description of the changes made to the file; empty if there were none.
    """

    samples: np.ndarray
    rate_hz: int
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


def read_channels(path: Path, rate_hz: int, channels: Channels) -> list[Recording]:
    """The channels of a file that libsndfile reads (WAV, FLAC, Ogg, MP3, SPHERE and others), averaged or each.

    Raises:
        CorpusError: the file is missing, not audio, damaged, cut short, or holds values that are not finite.
    """
    if not path.is_file():
        raise CorpusError(f"{path} is not a file" if path.exists() else f"{path}: there is no such file")
    return _read(path, str(path), rate_hz, channels)


def read_stream(content: bytes, rate_hz: int, raw_hz: int | None, channels: Channels = "average") -> list[Recording]:
    """All of standard input: a file by its header, or raw 16-bit little-endian samples of one channel at `raw_hz`.

    Raises:
        CorpusError: it is empty, has neither header nor rate, ends in half a sample, or as in `read_channels`.
    """
    name = "standard input"
    if content.startswith(HEADERS) or is_frame(content, 0) or (raw_hz is None and has_frames(content[:LOOKED_AT])):
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
        with Sound(source) as sound:
            fault = sound.fault()
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
    usable_S = (np.abs(samples_SC) <= LARGEST).all(1)
    if not usable_S.all():
        first = int(np.argmin(usable_S))
        value = next(f"{v:g}" for v in samples_SC[first] if not abs(v) <= LARGEST)
        what = "that is not a number" if value == "nan" else f"of {value}"
        raise CorpusError(f"{name} holds a value {what} at {first / native_hz:.3f} s: convert it to 16-bit samples")
    count = samples_SC.shape[1]
    if channels == "each" and count > 1:
        sides: list[tuple[int | None, np.ndarray]] = list(enumerate(samples_SC.T))
        done = list[str]()
    else:
        mono_S, how = mixed(samples_SC)
        sides, done = [(None, mono_S)], [how] if how else []
    done += [f"resampled from {native_hz} to {rate_hz} Hz"] if native_hz != rate_hz else []
    changes = ", ".join(done)
    return [Recording(_resampled(side_S, native_hz, rate_hz), rate_hz, count, n, changes) for n, side_S in sides]


def _joined(parts: Sequence[Recording]) -> Recording:
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
    """
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


# A microphone with two wires swapped, or a balanced line recorded as stereo, gives a channel that is the negative of
# another one.
NO_SIGNAL = 2.0**-13  # range of values, four steps of 16 bits: digital silence with dither, or less
SILENT = 1e-3  # of the standard deviation of the loudest channel, -60 dB
BLOCK_SAMPLES = 1 << 14
EQUAL = 0.99  # of the power of the loudest channel: the first one of equal channels is taken
CANCELLED = 0.5  # of the power that the mean of independent channels has
CANCELLED_SHARE = 0.1  # of the power of the recording that is in blocks where channels cancel


def has_signal(samples_S: np.ndarray) -> bool:
    """False for digital silence: nothing, zeros, a constant, or a signal of the size of its rounding."""
    return bool(len(samples_S) and float(np.ptp(samples_S)) > NO_SIGNAL)


def mixed(samples_SC: np.ndarray) -> tuple[np.ndarray, str]:
    """One signal (S,) of all channels, and a description of what was done; empty for one channel."""
    count = samples_SC.shape[1]
    if count == 1:
        return samples_SC[:, 0], ""
    products_BCC = _products(samples_SC)
    powers_C = products_BCC.diagonal(axis1=1, axis2=2).sum(0)
    loud_C = powers_C > SILENT**2 * powers_C.max()
    kept = [c for c in range(count) if loud_C[c] and has_signal(samples_SC[:, c])] or list(range(count))
    silent = [str(c + 1) for c in range(count) if c not in kept]
    done = [f"channel {' and '.join(silent)} of {count} left out as silent"] if silent else []
    if _cancel(products_BCC[:, kept][:, :, kept]):
        kept = [int(np.argmax(powers_C > EQUAL * powers_C.max()))]
        done.append(f"channel {kept[0] + 1} of {count} taken alone, since channels cancel each other in the mean")
    if len(kept) == 1:
        return samples_SC[:, kept[0]], ", ".join(done)
    done.append(f"{len(kept)} channels averaged")
    return (samples_SC[:, kept] if silent else samples_SC).mean(1, dtype=np.float32), ", ".join(done)


def _products(samples_SC: np.ndarray) -> np.ndarray:
    """Sums of products of each pair of channels, without their means, in blocks of the recording, (B, C, C)."""
    found = []
    for first in range(0, max(len(samples_SC), 1), BLOCK_SAMPLES):
        block_SC = samples_SC[first : first + BLOCK_SAMPLES].astype(np.float64)
        block_SC -= block_SC.mean(0) if len(block_SC) else 0.0
        found.append(block_SC.T @ block_SC)
    return np.stack(found)


def _cancel(products_BCC: np.ndarray) -> bool:
    """True if the mean has much less power than that of independent channels would have, in a part of the recording."""
    powers_B = products_BCC.diagonal(axis1=1, axis2=2).sum(1)
    lost_B = products_BCC.sum((1, 2)) < CANCELLED * powers_B
    return bool(powers_B[lost_B].sum() > CANCELLED_SHARE * powers_B.sum())
