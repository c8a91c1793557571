"""Augmentation of training features: masks (SpecAugment), tempo, vocal tract length.

Speed perturbation of the audio is a property of the analysis: `LogMel(speed=0.9)` and `Mfcc(speed=1.1)` in
`features.py`; the tempo change here serves corpora without audio, and does not change the pitch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SpecAugment:
    """Masks of zero (the mean, after CMVN) over random stretches of frames and of feature bins, Park et al. 2019.

    The masks follow an optional change of tempo and of vocal tract length (Jaitly & Hinton 2013, here on the
    mel axis: bin b takes the value of position b (1 + w), w ~ U(-warp, warp), linearly interpolated).

    Attributes:
        warp: largest relative change of the bin axis; 0 for none, and for all features but log-mel.
        tempo: range of the linear resampling in time to a length drawn from (1 - tempo .. 1 + tempo) T; 0 for none.
        noise: standard deviation of the white noise added before masking, in units of the features (1 is
                their own deviation after CMVN); 0 for none.
        time_masks: number of time masks.
        time_frames: length of the longest time mask; never more than a fifth of the utterance.
        bin_masks: number of frequency masks.
        bins: width of the widest frequency mask.
    """

    warp: float = 0.0
    tempo: float = 0.0
    noise: float = 0.0
    time_masks: int = 2
    time_frames: int = 20
    bin_masks: int = 2
    bins: int = 8

    def __call__(self, feats_TF: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A masked copy of feats_TF; width ~ U{0..longest}, position uniform.

        An array (T, F, K) holds K values per bin, such as derivatives, which are warped and masked alike.
        """
        masked = np.array(feats_TF)
        if self.tempo:
            frames = max(1, round(len(masked) * (1 + rng.uniform(-self.tempo, self.tempo))))
            masked = _resampled(masked, np.linspace(0, len(masked) - 1, frames))
        if self.warp:
            bins = np.arange(masked.shape[1]) * (1 + rng.uniform(-self.warp, self.warp))
            at_F = np.minimum(bins, masked.shape[1] - 1)
            masked = np.ascontiguousarray(_resampled(masked.swapaxes(0, 1), at_F).swapaxes(0, 1))
        if self.noise:
            masked += np.float32(self.noise) * rng.standard_normal(masked.shape, np.float32)
        frames, columns = masked.shape[:2]
        for _ in range(self.time_masks):
            first, last = _stretch(frames, min(self.time_frames, frames // 5), rng)
            masked[first:last] = 0.0
        for _ in range(self.bin_masks):
            first, last = _stretch(columns, min(self.bins, columns), rng)
            masked[:, first:last] = 0.0
        return masked


@dataclass(frozen=True)
class ChangeOfColumns:
    """Augmentation of the first columns of a frame; the others keep every bit.

    Attributes:
        augment: the augmentation, without tempo.
        bins: number of bins.
        orders: number of values per bin: 1, and one for each derivative. The first `bins` columns hold the values
            themselves, the next ones the first derivatives, and so on; masks and warps treat those of a bin alike.
    """

    augment: SpecAugment
    bins: int
    orders: int = 1

    def __call__(self, feats_TF: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A copy of feats_TF with changed columns."""
        width = self.bins * self.orders
        own_TKF = feats_TF[:, :width].reshape(len(feats_TF), self.orders, self.bins)
        changed_TFK = self.augment(own_TKF.swapaxes(1, 2), rng)
        changed = np.array(feats_TF)
        changed[:, :width] = changed_TFK.swapaxes(1, 2).reshape(len(feats_TF), width)
        return changed


def _resampled(rows_TF: np.ndarray, at_U: np.ndarray) -> np.ndarray:
    """Rows at fractional positions, linearly interpolated."""
    before_U = np.floor(at_U).astype(int)
    after_U = np.minimum(before_U + 1, len(rows_TF) - 1)
    share_U1 = (at_U - before_U).astype(np.float32).reshape(-1, *[1] * (rows_TF.ndim - 1))
    return (1 - share_U1) * rows_TF[before_U] + share_U1 * rows_TF[after_U]


def _stretch(length: int, longest: int, rng: np.random.Generator) -> tuple[int, int]:
    width = int(rng.integers(longest + 1))
    first = int(rng.integers(length - width + 1))
    return first, first + width
