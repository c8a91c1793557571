"""Making training data more varied: SpecAugment on features.

Speed perturbation is a property of the analysis: `LogMel(speed=0.9)` and `Mfcc(speed=1.1)` in `features.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SpecAugment:
    """Masks of zero (the mean, after CMVN) over random stretches of frames and of feature bins, Park et al. 2019.

    Attributes:
        time_masks: number of time masks.
        time_frames: longest time mask; never more than a fifth of the utterance.
        bin_masks: number of frequency masks.
        bins: widest frequency mask.
    """

    time_masks: int = 2
    time_frames: int = 20
    bin_masks: int = 2
    bins: int = 8

    def __call__(self, feats_TF: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A masked copy of feats_TF; width ~ U{0..longest}, position uniform."""
        masked = np.array(feats_TF)
        frames, columns = masked.shape
        for _ in range(self.time_masks):
            first, last = _stretch(frames, min(self.time_frames, frames // 5), rng)
            masked[first:last] = 0.0
        for _ in range(self.bin_masks):
            first, last = _stretch(columns, min(self.bins, columns), rng)
            masked[:, first:last] = 0.0
        return masked


def _stretch(length: int, longest: int, rng: np.random.Generator) -> tuple[int, int]:
    width = int(rng.integers(longest + 1))
    first = int(rng.integers(length - width + 1))
    return first, first + width
