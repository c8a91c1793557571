"""Speed (Ko et al. 2015) and noise on the fly: chunks analysed from audio, each changed by its own draw.

    y = x + g v,   10 log10(power(x) / power(g v)) = snr     over the stretch of audio under the chunk and its context

v is a stretch of a noise recording (as in Snyder et al. 2015, "MUSAN", arXiv 1510.08484), or Gaussian noise whose power
spectrum falls as f**-slope.

Only the stretch of audio under a chunk is read, resampled and analysed, so the cost of a chunk does not grow with its
utterance. Copies have the same frames and targets as a copy of the whole utterance on disk
(`chunks.speed_copy`): T' frames from the resampled audio, and at frame t the target of speed 1 at (t + 1/2) T / T'.

Shapes: U utterances, T frames of F values, G speakers (or utterances) that share a mean and a deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from murmur.speech.corpus.corpus import Audio, CorpusError
from murmur.speech.corpus.room_acoustics import add_noise, coloured_noise
from murmur.speech.features.analysis import LogMel, analyse, opened
from murmur.speech.features.chunks import Chunk, Frames, at_speed, copy_with_edges
from murmur.speech.features.cmvn import normalise

Alter = Callable[[np.ndarray], np.ndarray]
MARGIN_FRAMES = 6  # beyond these, the resampling filter and the mirrored edge of the analysis have no effect


def shift_samples(front: LogMel) -> int:
    """Samples from frame to frame."""
    return int(front.frame_shift_seconds * front.rate_hz)


def frames_at_speed(audio: Audio, front: LogMel) -> int:
    """Frames of an utterance at the front's speed, from the header of its file; 0 if it is shorter than a window."""
    with opened(audio, front.rate_hz) as recording:
        samples = recording.samples
    samples = math.floor(samples / _ratio(front.speed) + Fraction(1, 2))  # as soxr rounds
    if samples < front.frame_length_seconds * front.rate_hz:
        return 0
    return (samples + shift_samples(front) // 2) // shift_samples(front)


def analyse_stretch(audio: Audio, front: LogMel, first: int, last: int, alter: Alter | None = None) -> np.ndarray:
    """Frames [first, last) of the utterance at the front's speed, (last - first, F), equal to those of `features_of`.

    `alter` changes the samples (S,) that are read, which extend a little beyond the frames.
    """
    per_frame = shift_samples(front) * _ratio(front.speed)  # samples of the file
    # The stretch starts at a common sample of the file and of the resampled signal.
    begin = max(0, first - MARGIN_FRAMES) // per_frame.denominator * per_frame.denominator
    with opened(audio, front.rate_hz) as recording:
        end = min(recording.samples, math.ceil((last + MARGIN_FRAMES) * per_frame))
        samples_S = recording.read(int(begin * per_frame), end)
    return analyse(samples_S if alter is None else alter(samples_S), front)[first - begin : last - begin]


@lru_cache
def _ratio(speed: float) -> Fraction:
    """1.1 as 11/10, so that every n-th sample of the resampled signal coincides with one of the file."""
    return Fraction(speed).limit_denominator(1000)


@dataclass(frozen=True, eq=False)
class SpeedChunks:
    """Draws speed and noise for each chunk; chunks without either come from the stored features, others from audio.

    Attributes:
        stored: features and targets at speed 1.
        lengths: frames of each stored utterance, (U,).
        audio: audio of each stored utterance.
        front: analysis of the stored features.
        speeds: playback speeds, all equally likely; 1.0 may be among them.
        owners: index of the statistics that normalise an utterance, (U,), 0 .. G - 1; empty without normalisation.
        pairs: means and deviations, (G, 2, F), of the stored features, used for all speeds and for speech with noise.
        noise: noise added to chunks; None adds none.
    """

    stored: Frames
    lengths: npt.NDArray[np.integer]
    audio: Sequence[Audio]
    front: LogMel
    speeds: tuple[float, ...]
    owners: npt.NDArray[np.integer]
    pairs: npt.NDArray[np.float32]
    noise: NoiseSource | None = None

    def __call__(self, chunk: Chunk, rng: np.random.Generator) -> tuple[Frames, Chunk]:
        """The source of a chunk's frames, and the chunk's place in that source.

        Frames [first, last) of T become [first T' / T, last T' / T) of the T' of the copy, at least one. Copies too
        short to be analysed are taken at speed 1.
        """
        speed = self.speeds[int(rng.integers(len(self.speeds)))]
        added = None if self.noise is None else self.noise.draw(rng)
        if speed == 1.0 and added is None:
            return self.stored, chunk
        front = replace(self.front, speed=speed)
        frames, length = frames_at_speed(self.audio[chunk.utterance], front), int(self.lengths[chunk.utterance])
        if not frames:
            return self.stored, chunk
        first = chunk.first * frames // length
        return Copy(self, front, frames, added), Chunk(
            chunk.utterance, first, max(first + 1, chunk.last * frames // length)
        )


@dataclass(frozen=True, eq=False)
class Copy:
    """`Frames` of an utterance at another speed or with noise, computed on reading."""

    of: SpeedChunks
    front: LogMel
    frames: int
    added: Alter | None = None

    @property
    def dims(self) -> int:
        """Values per frame."""
        return self.front.dims

    def read(self, utterance: int, first: int, out_TF: np.ndarray) -> None:
        """Frames first, first + 1, ... with the edges repeated."""
        begin, end = max(first, 0), min(first + len(out_TF), self.frames)
        feats_TF = analyse_stretch(self.of.audio[utterance], self.front, begin, end, self.added)
        if len(self.of.owners):
            feats_TF = normalise(feats_TF, *self.of.pairs[self.of.owners[utterance]])
        copy_with_edges(feats_TF, first - begin, out_TF)

    def targets(self, utterance: int, first: int, last: int) -> np.ndarray:
        """Targets of the frames [first, last), stretched to the copy."""
        whole_T = self.of.stored.targets(utterance, 0, int(self.of.lengths[utterance]))
        return at_speed(whole_T, self.frames, first, last)


SUFFIXES = (".wav", ".flac", ".ogg")
SEEDS = 1 << 62


@dataclass(frozen=True)
class Noise:
    """The noise added to training speech, and the share of speech that receives it.

    Attributes:
        share: share of the chunks that get noise, 0 to 1; 0 adds none.
        snr_db: least and greatest signal-to-noise ratio in decibels, drawn uniformly.
        slope: least and greatest slope of artificial noise: 0 white, 1 pink, 2 brown.
        recordings: folder of noise recordings (WAV, FLAC, Ogg, mono, at the rate of the speech; subfolders are
                searched) in place of artificial noise. All are equally likely, and short ones are repeated.
    """

    share: float = 0.0
    snr_db: tuple[float, float] = (5.0, 20.0)
    slope: tuple[float, float] = (0.0, 2.0)
    recordings: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"noise.share = {self.share}: give the share of the chunks that get noise, 0 to 1")
        for name, (least, greatest) in (("snr_db", self.snr_db), ("slope", self.slope)):
            if not -200 < least <= greatest < 200:
                raise ValueError(f"noise.{name} = ({least}, {greatest}): give the least and the greatest")


@dataclass(frozen=True, eq=False)
class Added:
    """The noise of one chunk, from a recording, or artificial; the seed is that of the place or of the noise."""

    snr_db: float
    slope: float
    seed: int
    recording: Audio | None
    rate_hz: int

    def __call__(self, samples_S: np.ndarray) -> np.ndarray:
        """Speech with noise; digital silence, on either side, stays unchanged."""
        rng = np.random.default_rng(self.seed)
        if self.recording is None:
            noise_S = coloured_noise(len(samples_S), self.slope, rng)
        else:
            noise_S = stretch(self.recording, len(samples_S), self.rate_hz, rng)
        if not np.any(samples_S) or not np.any(noise_S):
            return samples_S
        return add_noise(samples_S, noise_S, self.snr_db)


@dataclass(frozen=True, eq=False)
class NoiseSource:
    """Draws noise for chunks of speech at `rate_hz`."""

    noise: Noise
    rate_hz: int

    def draw(self, rng: np.random.Generator) -> Added | None:
        """The noise of a chunk; None for chunks without noise."""
        if rng.random() >= self.noise.share:
            return None
        snr_db, slope = rng.uniform(*self.noise.snr_db), rng.uniform(*self.noise.slope)
        recording = None
        if self.noise.recordings is not None:
            recording = Audio(self.files[int(rng.integers(len(self.files)))])
        return Added(float(snr_db), float(slope), int(rng.integers(SEEDS)), recording, self.rate_hz)

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The recordings, in the order of their names, which is the same on every machine.

        Raises:
            CorpusError: there are none, or one is not mono at the rate of the speech.
        """
        assert self.noise.recordings is not None
        found = recordings_in(self.noise.recordings)
        for path in found:
            with opened(Audio(path), self.rate_hz):  # an error before training, not at the chunk that draws it
                pass
        return found


def recordings_in(folder: Path) -> tuple[Path, ...]:
    """The recordings below a folder, in the order of their names, without opening them; a CorpusError without any."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise CorpusError(f"task.front.noise.recordings: there is no {', '.join(SUFFIXES)} file in {folder}")
    return tuple(found)


def stretch(recording: Audio, length: int, rate_hz: int, rng: np.random.Generator) -> np.ndarray:
    """`length` samples from a random place of a recording, which repeats from its beginning."""
    with opened(recording, rate_hz) as file:
        if not file.samples:
            raise CorpusError(f"{recording.path} holds no sound")
        first = int(rng.integers(file.samples)) if file.samples <= length else int(rng.integers(file.samples - length))
        if file.samples > length:
            return file.read(first, first + length)
        whole_S = file.read(0, file.samples)
    return np.resize(np.roll(whole_S, -first), length)
