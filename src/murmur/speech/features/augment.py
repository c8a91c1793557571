"""Augmentation of training features: masks (SpecAugment), tempo, vocal tract length.

The tempo change serves corpora without audio; the speed of audio is a property of the analysis (`LogMel.speed`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SpecAugment:
    """Masks of zero (the mean, after CMVN) over random stretches of frames and of feature bins, Park et al. 2019.

    The masks follow an optional change of tempo and of vocal tract length (Jaitly & Hinton 2013, here on the
    mel axis: bin b takes the value of position b (1 + w), w ~ U(-warp, warp), linearly interpolated).

    Attributes:
        warp: largest relative change of the bin axis; 0 for none, and for all features but log-mel.
        tempo: range of the linear resampling in time to a length drawn from (1 - tempo .. 1 + tempo) T; 0 for none.
        time_masks: number of time masks.
        time_frames: length of the longest time mask; never more than a fifth of the utterance.
        bin_masks: number of frequency masks.
        bins: width of the widest frequency mask.
    """

    warp: float = 0.0
    tempo: float = 0.0
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
            masked = between(masked, np.linspace(0, len(masked) - 1, frames))
        if self.warp:
            bins = np.arange(masked.shape[1]) * (1 + rng.uniform(-self.warp, self.warp))
            at_F = np.minimum(bins, masked.shape[1] - 1)
            masked = np.ascontiguousarray(between(masked.swapaxes(0, 1), at_F).swapaxes(0, 1))
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
        orders: number of values per bin: 1, and one for each derivative; the values themselves are the first `bins`
            columns, then the first derivatives, and so on. Masks and warps treat those of a bin alike.
    """

    augment: SpecAugment
    bins: int
    orders: int = 1

    def __call__(self, feats_TF: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        width = self.bins * self.orders
        own_TKF = feats_TF[:, :width].reshape(len(feats_TF), self.orders, self.bins)
        changed_TFK = self.augment(own_TKF.swapaxes(1, 2), rng)
        changed = np.array(feats_TF)
        changed[:, :width] = changed_TFK.swapaxes(1, 2).reshape(len(feats_TF), width)
        return changed


def between(rows_TF: np.ndarray, at_U: np.ndarray) -> np.ndarray:
    """Rows at fractional positions, linearly interpolated."""
    before_U = np.floor(at_U).astype(int)
    after_U = np.minimum(before_U + 1, len(rows_TF) - 1)
    share_U1 = (at_U - before_U).astype(np.float32).reshape(-1, *[1] * (rows_TF.ndim - 1))
    return (1 - share_U1) * rows_TF[before_U] + share_U1 * rows_TF[after_U]


def _stretch(length: int, longest: int, rng: np.random.Generator) -> tuple[int, int]:
    width = int(rng.integers(longest + 1))
    first = int(rng.integers(length - width + 1))
    return first, first + width


FloatArray = NDArray[np.float64]
KNEE = 0.85  # of the highest frequency; above it the warp turns back to the identity


@dataclass(frozen=True)
class MelCepstra:
    """The analysis that made cepstra: filters with centres at equal distances in mel = 1127 ln(1 + f / 700).

    Attributes:
        bins: number B of filters.
        low_hz: lower edge of the first filter.
        high_hz: upper edge of the last filter.
        scaling: "orthonormal" for rows of equal norm in the cosine transform (Kaldi), "mean" for plain means of log
            energies times cosines (Sphinx's legacy transform).
        lifter: coefficient L of the weights 1 + L/2 sin(pi k / L); 0 for none.
    """

    bins: int = 23
    low_hz: float = 20.0
    high_hz: float = 8000.0
    scaling: Literal["orthonormal", "mean"] = "orthonormal"
    lifter: float = 22.0

    def scales(self, cepstra: int) -> FloatArray:
        """(K,) coefficients over the products with cosines of norm 1."""
        k = np.arange(cepstra)
        weights = 1.0 + self.lifter / 2 * np.sin(np.pi * k / self.lifter) if self.lifter else np.ones(cepstra)
        return weights * np.where(k, np.sqrt(0.5), 1.0) if self.scaling == "mean" else weights

    def centres_hz(self) -> FloatArray:
        """(B,) centres of the filters."""
        low, high = _mel(np.array([self.low_hz, self.high_hz]))
        mel = low + (high - low) * np.arange(1, self.bins + 1) / (self.bins + 1)
        return np.asarray(700.0 * np.expm1(mel / 1127.0))

    def position(self, hz: FloatArray) -> FloatArray:
        """Fractional filters, from 0 at the first centre, at some frequencies."""
        low, high = _mel(np.array([self.low_hz, self.high_hz]))
        return np.asarray((_mel(hz) - low) / (high - low) * (self.bins + 1) - 1.0)


def warped_hz(hz: FloatArray, factor: float, high_hz: float) -> FloatArray:
    """The frequency whose value a warped spectrum has at `hz`: factor * hz, then a line to the fixed `high_hz`.

    A factor above 1 moves formants down, as a longer vocal tract does.
    """
    knee = KNEE * high_hz * min(1.0, 1.0 / factor)
    slope = (high_hz - factor * knee) / (high_hz - knee)
    return np.asarray(np.where(hz <= knee, factor * hz, high_hz + slope * (hz - high_hz)))


def warp_matrix(analysis: MelCepstra, cepstra: int, factor: float) -> FloatArray:
    """(K, K) the change of the vocal tract length as a transform of `cepstra` coefficients, c0 first.

        T = C' W,  C_bk = cos(pi k (b + 1/2) / B),  W_bk = cos(pi k (p(v(f_b)) + 1/2) / B),

    up to the scales of the coefficients; f_b is the centre of filter b, p(f) the fractional filter at frequency f, and
    v(f) the warped frequency. It is exact for spectra that the cepstra describe completely. Pitz and Ney, "Vocal tract
    normalization equals linear transformation in cepstral space" (2005); Panchapagesan and Alwan, "Frequency warping
    for VTLN and speaker adaptation by linear transformation of standard MFCC" (2009).
    """
    warped = analysis.position(warped_hz(analysis.centres_hz(), factor, analysis.high_hz))
    plain_BK = _cosines(np.arange(analysis.bins, dtype=np.float64), cepstra, analysis.bins)
    scales_K = analysis.scales(cepstra)
    product = plain_BK.T @ _cosines(warped, cepstra, analysis.bins)
    return np.asarray(scales_K[:, None] * product / scales_K)


def at_speed(feats_TF: NDArray[np.float32], analysis: MelCepstra, speed: float) -> NDArray[np.float32]:
    """(round(T / speed), K) cepstra of the same speech played at another speed: fewer frames, formants `speed` times as
    high. Frames between frames are interpolated linearly; a speed that is not positive is a ValueError.
    """
    if not speed > 0:
        raise ValueError(f"a speed must be positive, not {speed}")
    if speed == 1.0:
        return feats_TF
    frames = max(1, round(len(feats_TF) / speed))
    at_U = np.clip((np.arange(frames) + 0.5) * len(feats_TF) / frames - 0.5, 0, len(feats_TF) - 1)
    matrix = warp_matrix(analysis, feats_TF.shape[1], 1.0 / speed)
    return np.asarray((between(feats_TF, at_U)[:, None] @ matrix.T.astype(np.float32))[:, 0])


def _cosines(positions: FloatArray, cepstra: int, bins: int) -> FloatArray:
    """(B, K) cosines at filter positions; columns have norm 1 at whole positions."""
    k = np.arange(cepstra)
    norms = np.sqrt(np.where(k, 2.0, 1.0) / bins)
    return np.asarray(norms * np.cos(np.pi * np.outer(positions + 0.5, k) / bins))


def _mel(hz: FloatArray) -> FloatArray:
    return np.asarray(1127.0 * np.log1p(hz / 700.0))
