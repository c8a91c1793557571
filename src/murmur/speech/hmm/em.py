"""Expectation maximisation of the mixtures, given the pdf of each frame.

E step, in float64 and for all frames of a pdf at once: posteriors gamma_g(t) of the Gaussians of the frame's pdf, and
    occupancy_g = sum_t gamma_g(t),  first_g = sum_t gamma_g(t) x_t,  second_g = sum_t gamma_g(t) x_t^2.
M step: w_g = occupancy_g / sum over the pdf, mu_g = first_g / occupancy_g, sigma_g^2 = second_g / occupancy_g - mu_g^2.
Sources: Dempster, Laird and Rubin (1977); the removal of rare Gaussians and the floor follow Kaldi.

Shapes: N frames of a block, F features, G Gaussians, P pdfs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from murmur.speech.hmm.mixtures import FloatArray, Mixtures, one_thread


@dataclass(frozen=True)
class MixtureStats:
    """Statistics of the E step; those of a corpus are the sum over its blocks.

    Attributes:
        occupancy: (G,) numbers of frames.
        first: (G, F) sums of x.
        second: (G, F) sums of x^2.
        log_likelihood: natural log-likelihood of all frames, summed.
        frames: number of frames.
    """

    occupancy: FloatArray
    first: FloatArray
    second: FloatArray
    log_likelihood: float
    frames: int

    def __add__(self, other: MixtureStats) -> MixtureStats:
        return MixtureStats(
            self.occupancy + other.occupancy,
            self.first + other.first,
            self.second + other.second,
            self.log_likelihood + other.log_likelihood,
            self.frames + other.frames,
        )


@dataclass(frozen=True)
class PdfFrames:
    """The frames of one pdf with the posteriors of its Gaussians.

    Attributes:
        rows: (n,) indices of the frames.
        gaussians: indices of the pdf's Gaussians among all.
        x: (n, F) frames, float64.
        posteriors: (n, g) gamma.
        log_likelihood: natural log-likelihood, summed over the frames.
    """

    rows: NDArray[np.int64]
    gaussians: slice
    x: torch.Tensor
    posteriors: torch.Tensor
    log_likelihood: float


def posteriors_by_pdf(mixtures: Mixtures, feats_NF: NDArray, pdfs_N: NDArray) -> Iterator[PdfFrames]:
    """The E step pdf by pdf, in ascending order of the pdfs that occur."""
    if not len(pdfs_N):
        return
    order = np.argsort(pdfs_N, kind="stable")
    pdfs, begins = np.unique(pdfs_N[order], return_index=True)
    terms = torch.from_numpy(mixtures.linear_terms)
    for pdf, begin, end in zip(pdfs, begins, [*begins[1:], len(order)], strict=True):
        gaussians = slice(int(mixtures.starts[pdf]), int(mixtures.starts[pdf] + mixtures.sizes[pdf]))
        rows = order[begin:end]
        x = torch.from_numpy(feats_NF[rows].astype(np.float64))
        scores = torch.addmm(terms[-1, gaussians], torch.cat([x, x * x], 1), terms[:-1, gaussians])
        total = scores.logsumexp(1, keepdim=True)
        yield PdfFrames(rows, gaussians, x, (scores - total).exp(), float(total.sum()))


def expect(mixtures: Mixtures, feats_NF: NDArray, pdfs_N: NDArray, summed_NF: NDArray | None = None) -> MixtureStats:
    """The E step over frames with known pdfs; `summed_NF` takes the place of the frames in the sums over x."""
    gaussians, dim = mixtures.means.shape
    occupancy, first, second = np.zeros(gaussians), np.zeros((gaussians, dim)), np.zeros((gaussians, dim))
    log_likelihood = 0.0
    with one_thread(), torch.inference_mode():
        for part in posteriors_by_pdf(mixtures, feats_NF, pdfs_N):
            x = part.x if summed_NF is None else torch.from_numpy(summed_NF[part.rows].astype(np.float64))
            occupancy[part.gaussians] = part.posteriors.sum(0).numpy()
            first[part.gaussians] = (part.posteriors.T @ x).numpy()
            second[part.gaussians] = (part.posteriors.T @ x.square()).numpy()
            log_likelihood += part.log_likelihood
    return MixtureStats(occupancy, first, second, log_likelihood, len(pdfs_N))


def maximise(mixtures: Mixtures, stats: MixtureStats, floor_F: FloatArray, min_occupancy: float) -> Mixtures:
    """The M step.

    Gaussians with less than `min_occupancy` frames are removed, but each pdf keeps its largest one; a pdf with fewer
    frames than that in all is left unchanged. Variances are at least `floor_F`.
    """
    pdf_of = np.repeat(np.arange(mixtures.num_pdfs), mixtures.sizes)
    held_P = np.add.reduceat(stats.occupancy, mixtures.starts)
    seen = (held_P >= min_occupancy)[pdf_of] & (held_P > 0)[pdf_of]
    largest = np.zeros(len(pdf_of), dtype=bool)
    ranking = np.lexsort((stats.occupancy, pdf_of))
    largest[ranking[np.cumsum(mixtures.sizes) - 1]] = True
    keep = ~seen | (stats.occupancy >= max(min_occupancy, 1e-10)) | largest

    safe = np.where(seen & keep, stats.occupancy, 1.0)[:, None]
    means = np.where(seen[:, None], stats.first / safe, mixtures.means)
    spread = np.maximum(stats.second / safe - means**2, floor_F)
    variances = np.where(seen[:, None], spread, mixtures.variances)
    weights = np.where(seen, stats.occupancy, mixtures.weights)[keep]
    sizes = np.add.reduceat(keep.astype(np.int64), mixtures.starts)
    sums_P = np.add.reduceat(weights, np.cumsum(sizes) - sizes)
    return Mixtures(sizes, weights / np.repeat(sums_P, sizes), means[keep], variances[keep])


def refit(mixtures: Mixtures, stats: MixtureStats, floor_F: FloatArray, min_occupancy: float) -> Mixtures:
    """The M step of means and variances alone: the Gaussians keep their number, order and weights.

    Gaussians with less than `min_occupancy` frames are left unchanged. Variances are at least `floor_F`.
    """
    seen = (stats.occupancy >= max(min_occupancy, 1e-10))[:, None]
    safe = np.where(seen[:, 0], stats.occupancy, 1.0)[:, None]
    means = np.where(seen, stats.first / safe, mixtures.means)
    variances = np.where(seen, np.maximum(stats.second / safe - means**2, floor_F), mixtures.variances)
    return Mixtures(mixtures.sizes, mixtures.weights, means, variances)
