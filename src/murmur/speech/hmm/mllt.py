"""Semi-tied covariances (MLLT): one linear transform of the features that makes diagonal covariances fit best.

Gales, "Semi-tied covariance matrices for hidden Markov models" (1999). With beta frames and
    G_i = sum_t sum_g gamma_g(t) / sigma_gi^2 (x_t - mu_g)(x_t - mu_g)',
A maximises  Q(A) = beta log |det A| - 1/2 sum_i a_i G_i a_i'
row by row:  a_i = sqrt(beta / (c_i G_i^-1 c_i')) c_i G_i^-1,  with c_i the cofactors of row i.

Shapes: N frames, D features, G Gaussians.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from murmur.speech.hmm.blocks import Block
from murmur.speech.hmm.em import posteriors_by_pdf
from murmur.speech.hmm.mixtures import FloatArray, one_thread
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.passes import aligned_frames, silence_weights

SWEEPS = 50


@dataclass(frozen=True)
class MlltStats:
    """Sums over frames.

    Attributes:
        frames: sum beta of all posteriors.
        scatter: (D, D, D) matrices G_i by row i.
    """

    frames: float
    scatter: FloatArray

    def __add__(self, other: MlltStats) -> MlltStats:
        return MlltStats(self.frames + other.frames, self.scatter + other.scatter)


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
