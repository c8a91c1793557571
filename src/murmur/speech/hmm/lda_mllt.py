"""Training of triphones on features projected by LDA and MLLT.

Linear discriminant analysis of spliced features has the pdfs of an alignment as classes. Haeb-Umbach and Ney, "Linear
discriminant analysis for improved large vocabulary continuous speech recognition" (1992).

Semi-tied covariances (MLLT) are one linear transform of the features that makes diagonal covariances fit best. Gales,
"Semi-tied covariance matrices for hidden Markov models" (1999). With beta frames and
    G_i = sum_t sum_g gamma_g(t) / sigma_gi^2 (x_t - mu_g)(x_t - mu_g)',
A maximises  Q(A) = beta log |det A| - 1/2 sum_i a_i G_i a_i'
row by row:  a_i = sqrt(beta / (c_i G_i^-1 c_i')) c_i G_i^-1,  with c_i the cofactors of row i.

Shapes: T or N frames, F features, X spliced values, D projected features, P classes, G Gaussians.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from murmur.execution.executors import Jobs
from murmur.speech.features.derived import shape_of
from murmur.speech.hmm.blocks import Block
from murmur.speech.hmm.em_loop import EmConfig, Progress, Trained, ignore_progress
from murmur.speech.hmm.grow import TreeConfig
from murmur.speech.hmm.material import Features
from murmur.speech.hmm.mixtures import Additive, FloatArray, one_thread, posteriors_by_pdf
from murmur.speech.hmm.model import HmmGmm, Projection, splice
from murmur.speech.hmm.passes import aligned_frames, silence_weights
from murmur.speech.hmm.triphone import aligned_by, grow_model


@dataclass(frozen=True)
class LdaConfig:
    """Options of splicing and of the kept dimensions.

    Attributes:
        dim: number D of kept dimensions.
        context_frames: number of neighbours on each side.
        static_dim: number of leading static features, e.g. 13 of 13 MFCC with deltas.
    """

    dim: int = 40
    context_frames: int = 4
    static_dim: int = 13

    def __post_init__(self) -> None:
        width = (2 * self.context_frames + 1) * self.static_dim
        if not 1 <= self.dim <= width:
            raise ValueError(f"cannot keep {self.dim} of {width} spliced values: lower dim or splice more frames")


@dataclass(frozen=True)
class LdaStats(Additive):
    """Sums over frames.

    Attributes:
        counts: (P,) weighted frames of each class.
        first: (P, X) sums of x by class.
        scatter: (X, X) sum of x x' over all frames.
    """

    counts: FloatArray
    first: FloatArray
    scatter: FloatArray


def lda_stats(block: Block, model: HmmGmm, config: LdaConfig, silence_weight: float = 1.0) -> LdaStats:
    """The sums over a block's alignments; the classes are the pdfs of `model`, and frames of silence count
    `silence_weight`."""
    width = (2 * config.context_frames + 1) * config.static_dim
    counts, first, scatter = np.zeros(model.num_pdfs), np.zeros((model.num_pdfs, width)), np.zeros((width, width))
    with one_thread(), torch.inference_mode():
        for utterance, tids_T in block.tids.items():
            x = splice(block.feats[utterance][:, : config.static_dim], config.context_frames).astype(np.float64)
            pdfs, weights_T = model.transitions.pdf_of[tids_T], silence_weights(model, tids_T, silence_weight)
            counts += np.bincount(pdfs, weights_T, minlength=model.num_pdfs)
            np.add.at(first, pdfs, weights_T[:, None] * x)
            wide = torch.from_numpy(x)
            scatter += (wide.T @ (torch.from_numpy(weights_T)[:, None] * wide)).numpy()
    return LdaStats(counts, first, scatter)


def estimate_lda(stats: LdaStats, config: LdaConfig) -> Projection:
    """The projection onto the directions in which the class means differ most, scaled to unit variance within classes.

    With W the covariance within and B between classes: the first D eigenvectors of W^-1/2 B W^-1/2, times W^-1/2.

    Raises:
        ValueError: there are too few frames for a covariance of full rank.
    """
    frames = stats.counts.sum()
    means_PX = stats.first / np.maximum(stats.counts, 1e-10)[:, None]
    mean_X = stats.first.sum(0) / frames
    centred = means_PX - mean_X
    between_XX = (centred * stats.counts[:, None]).T @ centred / frames
    within_XX = stats.scatter / frames - np.outer(mean_X, mean_X) - between_XX
    values, vectors = np.linalg.eigh(within_XX)
    if values[0] <= 1e-8 * values[-1]:
        raise ValueError(f"the covariance within classes of {frames:.0f} frames is singular: give more data")
    whiten_XX = (vectors / np.sqrt(values)) @ vectors.T
    _, directions = np.linalg.eigh(whiten_XX @ between_XX @ whiten_XX)
    matrix = (directions[:, ::-1][:, : config.dim]).T @ whiten_XX
    return Projection(_fix_signs(matrix), config.context_frames, config.static_dim)


def _fix_signs(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Make the largest entry of each row positive, since eigenvectors are defined up to their sign."""
    largest = np.abs(matrix).argmax(1)
    return matrix * np.sign(matrix[np.arange(len(matrix)), largest])[:, None]


SWEEPS = 50


@dataclass(frozen=True)
class MlltStats(Additive):
    """Sums over frames.

    Attributes:
        frames: sum beta of all posteriors.
        scatter: (D, D, D) matrices G_i by row i.
    """

    frames: float
    scatter: FloatArray


def mllt_stats(block: Block, model: HmmGmm, silence_weight: float = 1.0) -> MlltStats:
    """The sums over a block's alignments under the model's mixtures; frames of silence count `silence_weight`."""
    feats_ND, tids_N = aligned_frames(block, model)
    weights_N = silence_weights(model, tids_N, silence_weight)
    dim = model.mixtures.dim
    means, precisions = torch.from_numpy(model.mixtures.means), torch.from_numpy(1.0 / model.mixtures.variances)
    scatter = torch.zeros(dim, dim * dim, dtype=torch.float64)
    with one_thread(), torch.inference_mode():
        for part in posteriors_by_pdf(model.mixtures, feats_ND, model.transitions.pdf_of[tids_N]):
            posteriors = part.posteriors * torch.from_numpy(weights_N[part.rows])[:, None]
            for g in range(part.gaussians.start, part.gaussians.stop):
                centred = part.x - means[g]
                weighted = centred * posteriors[:, g - part.gaussians.start, None]
                scatter += torch.outer(precisions[g], (weighted.T @ centred).flatten())
    return MlltStats(float(weights_N.sum()), scatter.view(dim, dim, dim).numpy())


def estimate_mllt(stats: MlltStats) -> FloatArray:
    """(D, D) the transform A, from the identity by sweeps over its rows; each row update maximises Q exactly.

    Raises:
        ValueError: there are too few frames for scatter matrices of full rank.
    """
    dim = len(stats.scatter)
    if stats.frames < dim or np.linalg.cond(stats.scatter).max() > 1e12:
        raise ValueError(f"{stats.frames:.0f} frames are too few for a transform of {dim} features: give more data")
    inverses = np.linalg.inv(stats.scatter)
    transform = np.eye(dim)
    for _ in range(SWEEPS):
        for i in range(dim):
            # Row i of the cofactors up to the factor det A, which cancels in the update.
            cofactors = np.linalg.inv(transform)[:, i]
            direction = cofactors @ inverses[i]
            transform[i] = direction * np.sqrt(stats.frames / (direction @ cofactors))
    return transform


def apply_mllt(model: HmmGmm, transform_DD: FloatArray) -> HmmGmm:
    """The model with A after its projection and with transformed means; the next EM pass fits the variances.

    Raises:
        ValueError: the model has no projection.
    """
    if model.projection is None:
        raise ValueError("the model has no projection to refine: train it on LDA features first")
    projection = replace(model.projection, matrix=transform_DD @ model.projection.matrix)
    mixtures = replace(model.mixtures, means=model.mixtures.means @ transform_DD.T)
    return replace(model, projection=projection, mixtures=mixtures)


EM = EmConfig(gaussians=4000, passes=16, grow_passes=12, align_passes=(3, 5, 7, 10, 13), min_gaussian_frames=20.0)


@dataclass(frozen=True)
class LdaMlltConfig:
    """Settings of the projection, the tree and the EM loop.

    Attributes:
        lda: settings of splicing and projection.
        mllt_passes: passes after which the MLLT is estimated again.
        tree: size of the decision tree that ties the states of triphones.
        em: settings of the EM loop.
        silence_weight: weight of the frames of silence in the statistics of LDA and MLLT.
    """

    lda: LdaConfig = field(default_factory=LdaConfig)
    mllt_passes: tuple[int, ...] = (2, 4, 6, 10)
    tree: TreeConfig = field(default_factory=TreeConfig)
    em: EmConfig = EM
    silence_weight: float = 0.0


def train_lda_mllt(
    previous: HmmGmm,
    feats: Features,
    texts: Mapping[str, str],
    config: LdaMlltConfig | None = None,
    jobs: Jobs = 1,
    progress: Progress = ignore_progress,
) -> Trained:
    """Triphones on projected features, from the alignments of an earlier triphone model.

    `previous` aligns the corpus, and its pdfs are the classes of the LDA; the first `lda.static_dim` of its features
    are spliced. The other arguments, and the errors, are those of `train_monophone`.
    """
    config = config or LdaMlltConfig()
    for utterance in feats:
        shape = shape_of(feats, utterance)
        if len(shape) == 2 and shape[1] < config.lda.static_dim:
            raise ValueError(f"utterance {utterance} has fewer features than static_dim = {config.lda.static_dim}")
    with aligned_by(previous, "LDA+MLLT triphone", feats, texts, config.em, jobs, progress) as loop:
        workers = loop.workers
        lda = estimate_lda(workers.sum(lda_stats, previous, config.lda, config.silence_weight), config.lda)
        model, variance_D = grow_model(workers, previous, lda, config.tree)

        def refine(number: int, model: HmmGmm) -> HmmGmm:
            if number not in config.mllt_passes:
                return model
            return apply_mllt(model, estimate_mllt(workers.sum(mllt_stats, model, config.silence_weight)))

        return loop.run(model, variance_D, refine)
