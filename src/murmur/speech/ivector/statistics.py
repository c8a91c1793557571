"""Sums over the frames of one or several utterances from which an i-vector is estimated.

    N_c = s sum_t a_t p(c | x_t)      F_c = s sum_t a_t p(c | x_t) (x_t - m_c)

s: posterior scale, below 1 because neighbouring frames are not independent; a_t: weight of a frame, such as 0 for
silence. Sums of parts add up to those of the whole.

Shapes: T frames, F features, C Gaussians.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmur.speech.ivector.ubm import AT_ONCE, FloatArray, Ubm


@dataclass(frozen=True, eq=False)
class Sums:
    """The sums.

    Attributes:
        counts: (C,) N_c.
        first: (C, F) F_c.
    """

    counts: FloatArray
    first: FloatArray

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.counts + other.counts, self.first + other.first)

    @staticmethod
    def none(ubm: Ubm) -> Sums:
        """The sums over no frame."""
        return Sums(np.zeros_like(ubm.weights), np.zeros_like(ubm.means))

    @staticmethod
    def of(ubm: Ubm, x_TF: NDArray, scale: float, weights_T: NDArray | None = None) -> Sums:
        """The sums over the frames of an utterance; without weights all frames count 1.

        Raises:
            ValueError: there are not as many weights as frames.
        """
        if weights_T is not None and len(weights_T) != len(x_TF):
            raise ValueError(f"{len(weights_T)} weights for {len(x_TF)} frames")
        found = Sums.none(ubm)
        for begin in range(0, len(x_TF), AT_ONCE):
            part_TF = x_TF[begin : begin + AT_ONCE].astype(np.float64)
            posteriors_TC = scale * ubm.posteriors(part_TF)[0]
            if weights_T is not None:
                posteriors_TC *= weights_T[begin : begin + AT_ONCE, None]
            counts_C = posteriors_TC.sum(0)
            found += Sums(counts_C, posteriors_TC.T @ part_TF - counts_C[:, None] * ubm.means)
        return found
