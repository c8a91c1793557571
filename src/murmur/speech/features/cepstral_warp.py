"""Change of the vocal tract length in the cepstral domain: a linear transform of mel cepstra for each warp factor.

Cepstra are coefficients of cosines over the mel axis, so they describe a smooth spectrum S(f) that can be evaluated
between the filters. The transform evaluates it at warped frequencies and takes the cosine transform again:
    T = C' W,  C_bk = cos(pi k (b + 1/2) / B),  W_bk = cos(pi k (p(v(f_b)) + 1/2) / B),
up to the scales of the coefficients; f_b is the centre of filter b and p(f) the fractional filter at frequency f. It is
exact for spectra that the cepstra describe completely. Means over frames and derivatives are transformed like frames.

Pitz and Ney, "Vocal tract normalization equals linear transformation in cepstral space" (2005); Panchapagesan and
Alwan, "Frequency warping for VTLN and speaker adaptation by linear transformation of standard MFCC" (2009).

Shapes: T frames, B filters, K cepstra.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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

    def __post_init__(self) -> None:
        if self.bins < 1 or not 0 <= self.low_hz < self.high_hz:
            raise ValueError(f"{self}: bins must be positive, and 0 <= low_hz < high_hz")

    def scales(self, cepstra: int) -> FloatArray:
        """(K,) coefficients over the products with cosines of norm 1."""
        k = np.arange(cepstra)
        weights = 1.0 + self.lifter / 2 * np.sin(np.pi * k / self.lifter) if self.lifter else np.ones(cepstra)
        return weights * np.where(k, np.sqrt(0.5), 1.0) if self.scaling == "mean" else weights

    def centres_hz(self) -> FloatArray:
        """(B,) centres of the filters."""
        low, high = _mel(np.array([self.low_hz, self.high_hz]))
        return _hz(low + (high - low) * np.arange(1, self.bins + 1) / (self.bins + 1))

    def position(self, hz: FloatArray) -> FloatArray:
        """Fractional filters, from 0 at the first centre, at some frequencies."""
        low, high = _mel(np.array([self.low_hz, self.high_hz]))
        found: FloatArray = (_mel(hz) - low) / (high - low) * (self.bins + 1) - 1.0
        return found


def warped_hz(hz: FloatArray, factor: float, high_hz: float) -> FloatArray:
    """The frequency whose value a warped spectrum has at `hz`: factor * hz, then a line to the fixed `high_hz`.

    A factor above 1 moves formants down, as a longer vocal tract does.

    Raises:
        ValueError: the factor is not positive.
    """
    if not factor > 0:
        raise ValueError(f"a warp factor must be positive, not {factor}")
    knee = KNEE * high_hz * min(1.0, 1.0 / factor)
    slope = (high_hz - factor * knee) / (high_hz - knee)
    found: FloatArray = np.where(hz <= knee, factor * hz, high_hz + slope * (hz - high_hz))
    return found


def warp_matrix(analysis: MelCepstra, cepstra: int, factor: float) -> FloatArray:
    """(K, K) the transform T of `cepstra` coefficients, c0 first; the identity for the factor 1.

    Raises:
        ValueError: more cepstra than filters, or a factor that is not positive.
    """
    if not 1 <= cepstra <= analysis.bins:
        raise ValueError(f"{cepstra} cepstra of {analysis.bins} filters: give 1 to {analysis.bins}")
    warped = analysis.position(warped_hz(analysis.centres_hz(), factor, analysis.high_hz))
    plain_BK = _cosines(np.arange(analysis.bins, dtype=np.float64), cepstra, analysis.bins)
    scales_K = analysis.scales(cepstra)
    product = plain_BK.T @ _cosines(warped, cepstra, analysis.bins)
    found: FloatArray = scales_K[:, None] * product / scales_K
    return found


def warped(feats_TF: NDArray[np.float32], matrix: FloatArray | None) -> NDArray[np.float32]:
    """Cepstra after a transform (K, K); those frames hold K cepstra, or K cepstra and as many of each derivative."""
    if matrix is None:
        return feats_TF
    frames, columns = feats_TF.shape
    if columns % len(matrix):
        raise ValueError(f"{columns} columns are not blocks of {len(matrix)} cepstra")
    blocks = feats_TF.reshape(frames, -1, len(matrix)) @ matrix.T.astype(np.float32)
    return blocks.reshape(frames, columns)


def at_speed(feats_TF: NDArray[np.float32], analysis: MelCepstra, speed: float) -> NDArray[np.float32]:
    """(round(T / speed), K) cepstra of the same speech played at another speed: fewer frames, formants `speed` times as
    high. Frames between frames are interpolated linearly.

    Raises:
        ValueError: the speed is not positive.
    """
    if not speed > 0:
        raise ValueError(f"a speed must be positive, not {speed}")
    if speed == 1.0:
        return feats_TF
    frames = max(1, round(len(feats_TF) / speed))
    at_U = np.clip((np.arange(frames) + 0.5) * len(feats_TF) / frames - 0.5, 0, len(feats_TF) - 1)
    before_U = np.floor(at_U).astype(int)
    after_U = np.minimum(before_U + 1, len(feats_TF) - 1)
    share_U1 = (at_U - before_U)[:, None].astype(np.float32)
    between_UF = (1 - share_U1) * feats_TF[before_U] + share_U1 * feats_TF[after_U]
    return warped(between_UF, warp_matrix(analysis, feats_TF.shape[1], 1.0 / speed))


def _cosines(positions: FloatArray, cepstra: int, bins: int) -> FloatArray:
    """(B, K) cosines at filter positions; columns have norm 1 at whole positions."""
    k = np.arange(cepstra)
    norms = np.sqrt(np.where(k, 2.0, 1.0) / bins)
    found: FloatArray = norms * np.cos(np.pi * np.outer(positions + 0.5, k) / bins)
    return found


def _mel(hz: FloatArray) -> FloatArray:
    found: FloatArray = 1127.0 * np.log1p(hz / 700.0)
    return found


def _hz(mel: FloatArray) -> FloatArray:
    found: FloatArray = 700.0 * np.expm1(mel / 1127.0)
    return found
