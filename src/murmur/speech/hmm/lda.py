"""Linear discriminant analysis of spliced features, with the pdfs of an alignment as classes.

Haeb-Umbach and Ney, "Linear discriminant analysis for improved large vocabulary continuous speech recognition" (1992).

Shapes: N frames, X spliced values, D kept dimensions, P classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from murmur.speech.hmm.blocks import Block
from murmur.speech.hmm.mixtures import FloatArray, one_thread
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.passes import silence_weights
from murmur.speech.hmm.projection import Projection, splice


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
class LdaStats:
    """Sums over frames.

    Attributes:
        counts: (P,) weighted frames of each class.
        first: (P, X) sums of x by class.
        scatter: (X, X) sum of x x' over all frames.
    """

    counts: FloatArray
    first: FloatArray
    scatter: FloatArray

    def __add__(self, other: LdaStats) -> LdaStats:
        return LdaStats(self.counts + other.counts, self.first + other.first, self.scatter + other.scatter)


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
