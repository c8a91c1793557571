"""Noise on the fly, added to the audio of training chunks and drawn anew for each of them.

    y = x + g v,   10 log10(power(x) / power(g v)) = snr     over the stretch of audio under the chunk and its context

v is a stretch of a noise recording (as in Snyder et al. 2015, "MUSAN", arXiv 1510.08484), or Gaussian noise whose power
spectrum falls as f**-slope. Shapes: S samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from murmur.speech.corpus.corpus import Audio, CorpusError
from murmur.speech.corpus.room_acoustics import add_noise, coloured_noise
from murmur.speech.features.analysis import opened

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
    """The noise of one chunk.

    Attributes:
        snr_db: signal-to-noise ratio in decibels.
        slope: slope of artificial noise.
        seed: seed of artificial noise, or of the place in a recording.
        recording: source of the noise; None for artificial noise.
        rate_hz: rate of the speech.
    """

    snr_db: float
    slope: float
    seed: int
    recording: Audio | None
    rate_hz: int

    def __call__(self, samples_S: np.ndarray) -> np.ndarray:
        """Speech with noise; digital silence, on either side, stays unchanged.

        Raises:
            CorpusError: the recording cannot be used.
        """
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
        """The noise of a chunk; None for chunks without noise.

        Raises:
            CorpusError: there are no recordings.
        """
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
    """The recordings below a folder, in the order of their names, without opening them.

    Raises:
        CorpusError: there are none.
    """
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise CorpusError(f"task.front.noise.recordings: there is no {', '.join(SUFFIXES)} file in {folder}")
    return tuple(found)


def stretch(recording: Audio, length: int, rate_hz: int, rng: np.random.Generator) -> np.ndarray:
    """`length` samples from a random place of a recording, which repeats from its beginning.

    Raises:
        CorpusError: the recording cannot be used, or is empty.
    """
    with opened(recording, rate_hz) as file:
        if not file.samples:
            raise CorpusError(f"{recording.path} holds no sound")
        first = int(rng.integers(file.samples)) if file.samples <= length else int(rng.integers(file.samples - length))
        if file.samples > length:
            return file.read(first, first + length)
        whole_S = file.read(0, file.samples)
    return np.resize(np.roll(whole_S, -first), length)
