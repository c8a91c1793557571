"""Speaker adaptation of features by feature-space maximum likelihood linear regression (fMLLR, constrained MLLR).

x' = W xi with W = [A b] and xi = [x; 1]. For diagonal Gaussians with posteriors gamma and beta = sum gamma:
    k_i = sum_t sum_g gamma_g(t) mu_gi / sigma_gi^2 xi,    G_i = sum_t sum_g gamma_g(t) / sigma_gi^2 xi xi',
    Q(W) = beta log |det A| + sum_i (w_i k_i' - 1/2 w_i G_i w_i').
Row by row, W maximises Q:  w_i = (alpha c_i + k_i) G_i^-1, with c_i the cofactors of row i of A, extended by a zero,
and alpha the root of  alpha^2 c_i G_i^-1 c_i' + alpha c_i G_i^-1 k_i' - beta = 0  with the larger Q.

Gales, "Maximum likelihood linear transformations for HMM-based speech recognition" (1998); Povey and Saon, "Feature and
model space speaker adaptation with full covariance Gaussians" (2006).

Shapes: T or N frames, D features, G Gaussians.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from murmur.core.counted import are, counted
from murmur.execution.executors import Jobs
from murmur.speech.features.by_utterance import part_of
from murmur.speech.features.derived import shape_of
from murmur.speech.hmm.blocks import Block, Workers, cut_into_blocks
from murmur.speech.hmm.material import Features
from murmur.speech.hmm.mixtures import Additive, FloatArray, Mixtures, one_thread, posteriors_by_pdf
from murmur.speech.hmm.model import HmmGmm, adapt
from murmur.speech.hmm.passes import aligned_frames, silence_weights, unadapted_frames
from murmur.speech.hmm.tree import IntArray

SWEEPS = 100
SMALLEST_GAIN = 1e-6  # of a sweep, in nats per frame; with less the sweeps end
SMALLEST_PIVOT = 1e-13  # of G_i, relative to its largest one
FRAMES_AT_ONCE = 256  # 2 MB of products xi xi' at D = 40, which stay in the processor's cache


class SingularSumsError(ValueError):
    """The frames of a speaker do not span all features, so that there is no best transform."""


@dataclass(frozen=True)
class FmllrStats(Additive):
    """Sums over the frames of a speaker; those of several blocks add up.

    Attributes:
        frames: beta, the sum of all posteriors.
        linear: (D, D + 1) vectors k_i by row i.
        quadratic: (D, D + 1, D + 1) matrices G_i by row i.
    """

    frames: float
    linear: FloatArray
    quadratic: FloatArray

    def auxiliary(self, transform: FloatArray) -> float:
        """Q(W) in nats, for W (D, D + 1)."""
        _, log_det = np.linalg.slogdet(transform[:, :-1])
        fit = np.sum(transform * self.linear) - 0.5 * np.einsum("ij,ijk,ik->", transform, self.quadratic, transform)
        return float(self.frames * log_det + fit)


def frame_sums(
    seen: Mixtures, feats_ND: NDArray, pdfs_N: NDArray, weights_N: FloatArray, target: Mixtures
) -> FloatArray:
    """(N, 2D) sum_g gamma_g(t) / sigma_g^2 of each frame, then sum_g gamma_g(t) mu_g / sigma_g^2, times its weight.

    Posteriors are those of `seen` for the frames and their pdfs; mu and sigma those of `target`, which the adapted
    frames should fit, with the same Gaussians in the same order.
    """
    precisions_GD = torch.from_numpy(1.0 / target.variances)
    both_GD = torch.cat([precisions_GD, precisions_GD * torch.from_numpy(target.means)], 1)
    sums = torch.empty(len(pdfs_N), both_GD.shape[1], dtype=torch.float64)
    with one_thread(), torch.inference_mode():
        for part in posteriors_by_pdf(seen, feats_ND, pdfs_N):
            sums[torch.from_numpy(part.rows)] = part.posteriors @ both_GD[part.gaussians]
        sums *= torch.from_numpy(weights_N)[:, None]
    return sums.numpy()


def fmllr_stats(sums_NE: FloatArray, feats_ND: NDArray, weights_N: FloatArray) -> FmllrStats:
    """The statistics of one speaker from `frame_sums`; `feats_ND` are the frames before adaptation.

    All G_i come from one product of the precisions with the upper triangles of xi xi'.
    """
    frames, dim = feats_ND.shape
    rows, columns = np.triu_indices(dim + 1)
    begins = np.searchsorted(rows, np.arange(dim + 1)).tolist()  # of the products with each value of xi
    triangles = torch.zeros(len(rows), dim, dtype=torch.float64)
    precisions = torch.from_numpy(np.ascontiguousarray(sums_NE[:, :dim]))
    with one_thread(), torch.inference_mode():
        plain = torch.from_numpy(feats_ND.T.astype(np.float64))
        xi = torch.cat([plain, torch.ones(1, frames, dtype=torch.float64)])
        linear = xi @ torch.from_numpy(np.ascontiguousarray(sums_NE[:, dim:]))
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
    """(D, D + 1) the transform W of a speaker, by sweeps over its rows from `start` until Q no longer rises.

    With fewer than `min_frames` frames it is the identity, and so is the start if it is None.

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


log = logging.getLogger(__name__)
Transforms = Mapping[str, FloatArray]


@dataclass(frozen=True)
class FmllrConfig:
    """Settings of the estimation.

    Attributes:
        min_frames: least number of weighted frames of a speaker; with fewer the transform is the identity.
        silence_weight: weight of the frames of silence.
    """

    min_frames: float = 500.0
    silence_weight: float = 0.0

    def __post_init__(self) -> None:
        if not (self.min_frames >= 0 and 0 <= self.silence_weight <= 1):
            raise ValueError(f"{self}: min_frames must not be negative, and silence_weight in 0 ... 1")


def speaker_stats(block: Block, seen: HmmGmm, target: HmmGmm, config: FmllrConfig) -> dict[str, FmllrStats]:
    """The statistics of a block's speakers.

    The posteriors are those of `seen` for frames under the block's present transforms; the transforms that follow from
    the sums fit unadapted frames to `target`. Both models have the same Gaussians in the same order.
    """
    weights_N, sums_NE, frames_ND, speakers_N = _weighed(block, seen, target, config)
    found = {}
    for speaker in sorted(set(block.speakers[u] for u in block.tids)):
        own = np.flatnonzero(speakers_N == speaker)
        found[speaker] = fmllr_stats(sums_NE[own], frames_ND[own], weights_N[own])
    return found


def _weighed(
    block: Block, seen: HmmGmm, target: HmmGmm, config: FmllrConfig
) -> tuple[FloatArray, FloatArray, np.ndarray, np.ndarray]:
    """Weights, sums over Gaussians, unadapted features and speakers of the frames whose weight is not 0."""
    adapted_ND, tids_N = aligned_frames(block, seen)
    plain_ND = unadapted_frames(block, target)
    lengths = np.array([len(tids_T) for tids_T in block.tids.values()], dtype=np.int64)
    speakers_N = np.repeat(np.array([block.speakers[u] for u in block.tids], dtype=object), lengths)
    weights_N = silence_weights(seen, tids_N, config.silence_weight)
    kept = np.flatnonzero(weights_N)
    weights_N, pdfs_N = weights_N[kept], seen.transitions.pdf_of[tids_N[kept]]
    sums_NE = frame_sums(seen.mixtures, adapted_ND[kept], pdfs_N, weights_N, target.mixtures)
    return weights_N, sums_NE, plain_ND[kept], speakers_N[kept]


def estimate_transforms(
    workers: Workers, seen: HmmGmm, target: HmmGmm, config: FmllrConfig, present: Transforms
) -> dict[str, FloatArray]:
    """New transforms of all speakers from the blocks' alignments, for the next passes over the blocks.

    `present` are the transforms in the blocks, from which the new ones start; the statistics are those of
    `speaker_stats`. Those of a speaker are held up to the speaker's last block.
    """
    totals, estimated = dict[str, FmllrStats](), dict[str, FloatArray]()
    left = Counter(speaker for block in workers.blocks for speaker in block.speakers)
    for block, own in zip(workers.blocks, workers.stream(speaker_stats, seen, target, config), strict=True):
        for speaker, stats in own.items():
            totals[speaker] = totals[speaker] + stats if speaker in totals else stats
        left.subtract(block.speakers)
        for speaker in [s for s in totals if not left[s]]:
            stats = totals.pop(speaker)
            estimated[speaker] = _estimated(speaker, stats, present.get(speaker), config.min_frames)
    found = dict(sorted(estimated.items()))
    if found and not of_adapted(found):
        log.warning(
            "%s not adapted to: fewer than %g frames of speech each (fmllr.min_frames); utterances whose speaker is not"
            " given count as speakers of their own",
            *(f"{counted(len(found), 'speaker')} {are(len(found))}", config.min_frames),
        )
    workers.transforms = {**present, **found}
    return found


def _estimated(speaker: str, stats: FmllrStats, start: FloatArray | None, min_frames: float) -> FloatArray:
    """The transform of a speaker; the identity if the frames do not determine one, as those of a muted recording."""
    try:
        return estimate_fmllr(stats, start, min_frames)
    except SingularSumsError as error:
        log.warning("speaker %r is not adapted to: %s", speaker, error)
        return identity(len(stats.linear))


@dataclass(frozen=True)
class AdaptedPair:
    """A model of adapted features, and its twin of unadapted ones with the same states and Gaussians.

    Attributes:
        adapted: model trained on adapted features; it scores features that a transform has adapted.
        unadapted: means and variances of unadapted features under the same posteriors; it aligns and decodes in the
            first pass, and decodes speakers who have no transform.
    """

    adapted: HmmGmm
    unadapted: HmmGmm

    def __post_init__(self) -> None:
        if not np.array_equal(self.adapted.mixtures.sizes, self.unadapted.mixtures.sizes):
            raise ValueError("the models of adapted and of unadapted features have different Gaussians")

    def loglikes(self, feats_TF: np.ndarray, transform: FloatArray | None) -> np.ndarray:
        """(T, P) natural log-likelihoods of features that are neither projected nor adapted.

        With a transform, the model of adapted features scores adapted frames; without one, for want of speech, the
        model of unadapted features scores the frames themselves.
        """
        if transform is None:
            return self.unadapted.loglikes(feats_TF)
        return self.adapted.mixtures.loglikes(adapt(transform, self.adapted.features(feats_TF)))


def transforms_from_paths(
    pair: AdaptedPair,
    feats: Features,
    paths: Mapping[str, IntArray],
    speakers: Mapping[str, str],
    config: FmllrConfig,
    jobs: Jobs = 1,
) -> dict[str, FloatArray]:
    """Transforms of the speakers of decoded utterances; speakers with too few frames for one are left out.

    The transforms are estimated twice on the same paths: with posteriors of the model of unadapted features, and with
    those of adapted frames under the first transforms.

    `feats` are {utterance: (T, F) features}, neither projected nor adapted; `paths` {utterance: (T,) transition-ids} of
    the best paths, without which, or with a shorter one, an utterance is left out; `speakers` {utterance: speaker}.
    """
    whole = [u for u, path in paths.items() if len(path) and len(path) == shape_of(feats, u)[0]]
    blocks = cut_into_blocks(part_of(feats, whole), dict.fromkeys(whole, ""), speakers, paths)
    with Workers(blocks, jobs) as workers:
        found = estimate_transforms(workers, pair.unadapted, pair.adapted, config, {})
        if of_adapted(found):
            found = estimate_transforms(workers, pair.adapted, pair.adapted, config, found)
    return of_adapted(found)


def of_adapted(transforms: Transforms) -> dict[str, FloatArray]:
    """The transforms that are not the identity."""
    return {s: w_DE for s, w_DE in transforms.items() if not np.array_equal(w_DE, identity(len(w_DE)))}
