"""Frames of a corpus that does not exist: drawn when they are read, from a mean for each class.

Shapes: T frames, F values per frame, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

SEGMENT = 5  # frames of one class
MEANS = 1 << 32  # above the number of any utterance, so that the means have a generator of their own


@dataclass(frozen=True)
class GeneratedFrames:
    """Utterances of equal length: `Frames` for a `ChunkTable`, as a pure function of the fields.

    Every five frames have one class c in 0 .. C - 1, of probability ln((c + 2) / (c + 1)) / ln(C + 1): a few classes
    are frequent and many rare, as states of speech are. x_t = m(class) + n_t with independent normal numbers in m
    (standard deviation 1) and n (standard deviation `noise`).

    Attributes:
        count: number of utterances.
        length: frames of each utterance.
        dims: values per frame.
        classes: number of classes.
        first: number of the first utterance; two corpora with the same means and different numbers share no frame.
        noise: standard deviation within a class.
        seed: seed of all draws.
    """

    count: int
    length: int
    dims: int
    classes: int
    first: int = 0
    noise: float = 1.0
    seed: int = 0

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Frames of each utterance, in one number's memory."""
        return np.broadcast_to(np.int32(self.length), (self.count,))

    def read(self, utterance: int, first: int, out_TF: np.ndarray) -> None:
        """Write frames first, first + 1, ... into `out_TF`; edge frames are repeated before and after the utterance."""
        draw = self._generator(utterance)
        classes_T = self._classes(draw)
        feats_TF = draw.standard_normal((self.length, self.dims), dtype=np.float32)
        feats_TF *= self.noise
        feats_TF += self._means[classes_T]
        out_TF[:] = feats_TF[np.clip(np.arange(first, first + len(out_TF)), 0, self.length - 1)]

    def targets(self, utterance: int, first: int, last: int) -> np.ndarray:
        """Classes of the frames [first, last)."""
        return self._classes(self._generator(utterance))[first:last]

    def _generator(self, utterance: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.first + utterance])

    def _classes(self, draw: np.random.Generator) -> np.ndarray:
        places = (self.classes + 1) ** draw.random(-(-self.length // SEGMENT))  # in [1, C + 1)
        return np.minimum(places.astype(np.int64), self.classes).repeat(SEGMENT)[: self.length] - 1

    @cached_property
    def _means(self) -> np.ndarray:
        draw = np.random.default_rng([self.seed, MEANS])
        return draw.standard_normal((self.classes, self.dims), dtype=np.float32)
