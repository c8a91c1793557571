"""Speaker adaptation of features by feature-space maximum likelihood linear regression (fMLLR, constrained MLLR).

x' = W xi with W = [A b] and xi = [x; 1]. For diagonal Gaussians with posteriors gamma and beta = sum gamma:
    k_i = sum_t sum_g gamma_g(t) mu_gi / sigma_gi^2 xi,    G_i = sum_t sum_g gamma_g(t) / sigma_gi^2 xi xi',
    Q(W) = beta log |det A| + sum_i (w_i k_i' - 1/2 w_i G_i w_i').
Row by row, W maximises Q:  w_i = (alpha c_i + k_i) G_i^-1, with c_i the cofactors of row i of A, extended by a zero,
and alpha the root of  alpha^2 c_i G_i^-1 c_i' + alpha c_i G_i^-1 k_i' - beta = 0  with the larger Q.

Gales, "Maximum likelihood linear transformations for HMM-based speech recognition" (1998); Povey and Saon, "Feature and
model space speaker adaptation with full covariance Gaussians" (2006).

Shapes: N frames, D features, G Gaussians.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from murmur.speech.hmm.em import posteriors_by_pdf
from murmur.speech.hmm.mixtures import FloatArray, Mixtures, one_thread

SWEEPS = 100
SMALLEST_GAIN = 1e-6  # of a sweep, in nats per frame; with less the sweeps end
SMALLEST_PIVOT = 1e-13  # of G_i, relative to its largest one
FRAMES_AT_ONCE = 256  # 2 MB of products xi xi' at D = 40, which stay in the processor's cache


class SingularSumsError(ValueError):
    """The frames of a speaker do not span all features, so that there is no best transform."""


@dataclass(frozen=True)
class FmllrStats:
    """Sums over the frames of a speaker; those of several blocks add up.

    Attributes:
        frames: beta, the sum of all posteriors.
        linear: (D, D + 1) vectors k_i by row i.
        quadratic: (D, D + 1, D + 1) matrices G_i by row i.
    """

    frames: float
    linear: FloatArray
    quadratic: FloatArray

    def __add__(self, other: FmllrStats) -> FmllrStats:
        return FmllrStats(self.frames + other.frames, self.linear + other.linear, self.quadratic + other.quadratic)

    def auxiliary(self, transform: FloatArray) -> float:
        """Q(W) in nats, for W (D, D + 1)."""
        _, log_det = np.linalg.slogdet(transform[:, :-1])
        fit = np.sum(transform * self.linear) - 0.5 * np.einsum("ij,ijk,ik->", transform, self.quadratic, transform)
        return float(self.frames * log_det + fit)


@dataclass(frozen=True)
class FrameSums:
    """Parameters of the Gaussians of each frame, averaged by posterior and weighted; D features.

    Attributes:
        precisions: (N, D) weight times sum_g gamma_g(t) / sigma_g^2.
        scaled_means: (N, D) weight times sum_g gamma_g(t) mu_g / sigma_g^2.
    """

    precisions: FloatArray
    scaled_means: FloatArray


def frame_sums(
    seen: Mixtures, feats_ND: NDArray, pdfs_N: NDArray, weights_N: FloatArray, target: Mixtures
) -> FrameSums:
    """The sums over the Gaussians of every frame.

    Args:
        seen: mixtures that give the posteriors.
        feats_ND: frames as `seen` expects them.
        pdfs_N: the pdf of each frame.
        weights_N: weight of each frame.
        target: mixtures that the adapted frames should fit, with the same Gaussians in the same order as `seen`.
    """
    precisions_GD = torch.from_numpy(1.0 / target.variances)
    both_GD = torch.cat([precisions_GD, precisions_GD * torch.from_numpy(target.means)], 1)
    sums = torch.empty(len(pdfs_N), both_GD.shape[1], dtype=torch.float64)
    with one_thread(), torch.inference_mode():
        for part in posteriors_by_pdf(seen, feats_ND, pdfs_N):
            sums[torch.from_numpy(part.rows)] = part.posteriors @ both_GD[part.gaussians]
        sums *= torch.from_numpy(weights_N)[:, None]
    precisions, scaled = sums.numpy()[:, : target.dim], sums.numpy()[:, target.dim :]
    return FrameSums(precisions, scaled)


def fmllr_stats(sums: FrameSums, feats_ND: NDArray, weights_N: FloatArray) -> FmllrStats:
    """The sums of the frames of one speaker; `feats_ND` are the frames before adaptation.

    All G_i come from one product of the precisions with the upper triangles of xi xi'.
    """
    frames, dim = feats_ND.shape
    rows, columns = np.triu_indices(dim + 1)
    begins = np.searchsorted(rows, np.arange(dim + 1)).tolist()  # of the products with each value of xi
    triangles = torch.zeros(len(rows), dim, dtype=torch.float64)
    precisions = torch.from_numpy(np.ascontiguousarray(sums.precisions))
    with one_thread(), torch.inference_mode():
        plain = torch.from_numpy(feats_ND.T.astype(np.float64))
        xi = torch.cat([plain, torch.ones(1, frames, dtype=torch.float64)])
        linear = xi @ torch.from_numpy(np.ascontiguousarray(sums.scaled_means))
        products = torch.empty(len(rows), min(frames, FRAMES_AT_ONCE), dtype=torch.float64)
        for first in range(0, frames, FRAMES_AT_ONCE):
            part = xi[:, first : first + FRAMES_AT_ONCE]
            own = products[:, : part.shape[1]]
            for i, begin in enumerate(begins):
                torch.mul(part[i], part[i:], out=own[begin : begin + dim + 1 - i])
            triangles.addmm_(own, precisions[first : first + FRAMES_AT_ONCE])
    quadratic = np.empty((dim, dim + 1, dim + 1))
    quadratic[:, rows, columns] = quadratic[:, columns, rows] = triangles.T.numpy()
    return FmllrStats(float(weights_N.sum()), np.ascontiguousarray(linear.T.numpy()), quadratic)


def identity(dim: int) -> FloatArray:
    """(D, D + 1) the transform that changes nothing."""
    return np.eye(dim, dim + 1)


def estimate_fmllr(stats: FmllrStats, start: FloatArray | None = None, min_frames: float = 500.0) -> FloatArray:
    """(D, D + 1) the transform W of a speaker, by sweeps over its rows until Q no longer rises.

    Args:
        stats: sums over the speaker's frames.
        start: first W, e.g. the one of the previous estimate; None for the identity.
        min_frames: least number of frames; with fewer the result is the identity.

    Raises:
        SingularSumsError: the frames do not span all features.
    """
    dim = len(stats.linear)
    if stats.frames < max(min_frames, 1e-10):
        return identity(dim)
    if not _invertible(stats.quadratic):
        raise SingularSumsError(f"{stats.frames:.0f} frames are too few or too alike for a transform of {dim} features")
    inverses = np.linalg.inv(stats.quadratic).astype(np.float64)
    transform = identity(dim) if start is None else start.copy()
    value = stats.auxiliary(transform)
    for _ in range(SWEEPS):
        _sweep(stats, inverses, transform)
        before, value = value, stats.auxiliary(transform)
        if value - before < SMALLEST_GAIN * stats.frames:
            break
    return transform


def _invertible(quadratic: FloatArray) -> bool:
    """True if all G_i are positive definite beyond rounding, by the squared diagonals of their Cholesky factors."""
    try:
        pivots = np.square(np.diagonal(np.linalg.cholesky(quadratic), axis1=1, axis2=2))
    except np.linalg.LinAlgError:
        return False
    return bool((pivots.min(1) > SMALLEST_PIVOT * pivots.max(1)).all())


def _sweep(stats: FmllrStats, inverses: FloatArray, transform: FloatArray) -> None:
    """Update all rows in place; the inverse of A follows each row by the Sherman-Morrison formula."""
    inverse = np.linalg.inv(transform[:, :-1])
    for i in range(len(transform)):
        # Row i of the cofactors up to the factor det A, which cancels in the update.
        cofactors = np.append(inverse[:, i], 0.0)
        change = best_row(stats.frames, stats.linear[i], inverses[i], cofactors) - transform[i]
        transform[i] += change
        along = change[:-1] @ inverse
        inverse -= np.outer(inverse[:, i], along) / (1.0 + along[i])


def best_row(frames: float, linear: FloatArray, inverse: FloatArray, cofactors: FloatArray) -> FloatArray:
    """(D + 1,) the row w that maximises  beta log |w c'| + w k' - 1/2 w G w', with `inverse` = G^-1.

    With w = (alpha c + k) G^-1 this is  beta log |beta / alpha| - 1/2 alpha^2 c G^-1 c'  up to a constant, so that of
    both roots the one closer to zero is better.
    """
    direction = inverse @ cofactors
    square, mixed = float(direction @ cofactors), float(direction @ linear) + 0.0  # -0.0 becomes 0.0
    root = np.sqrt(mixed**2 + 4.0 * square * frames)
    alpha = 2.0 * frames / (mixed + np.copysign(root, mixed))
    return inverse @ linear + alpha * direction


def adapt(transform: FloatArray | None, feats_TD: NDArray[np.float32]) -> NDArray[np.float32]:
    """(T, D) W xi of all frames in float32; the frames themselves without a transform."""
    if transform is None:
        return feats_TD
    wide = transform.astype(np.float32)
    with one_thread(), torch.inference_mode():
        return torch.addmm(
            torch.from_numpy(wide[:, -1].copy()), torch.from_numpy(feats_TD), torch.from_numpy(wide[:, :-1].copy()).T
        ).numpy()
