"""Mixtures of diagonal Gaussians, one mixture per pdf, and their EM, given the pdf of each frame.

    log p(x | pdf) = log sum_g w_g N(x; mu_g, diag(sigma_g^2))

E step, in float64 and for all frames of a pdf at once: posteriors gamma_g(t) of the Gaussians of the frame's pdf, and
    occupancy_g = sum_t gamma_g(t),  first_g = sum_t gamma_g(t) x_t,  second_g = sum_t gamma_g(t) x_t^2.
M step: w_g = occupancy_g / sum over the pdf, mu_g = first_g / occupancy_g, sigma_g^2 = second_g / occupancy_g - mu_g^2.
Sources: Dempster, Laird and Rubin (1977); the removal of rare Gaussians and the floor follow Kaldi.

Shapes: T or N frames, F features, G Gaussians of all pdfs (those of one pdf are adjacent), P pdfs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import kaldi_hmm_gmm as khg
import numpy as np
import torch
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@contextmanager
def one_thread() -> Iterator[None]:
    """Context with one torch thread, in which sums have the same order, and thus the same bits, in every process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Mixtures:
    """The Gaussians of all pdfs.

    Attributes:
        sizes: (P,) number of Gaussians of each pdf.
        weights: (G,) weights of the Gaussians; those of a pdf sum to one.
        means: (G, F) means.
        variances: (G, F) variances.

    Raises:
        ValueError: the shapes do not fit, a pdf has no Gaussian, or a weight or variance is not positive and finite.
    """

    sizes: NDArray[np.int64]
    weights: FloatArray
    means: FloatArray
    variances: FloatArray

    def __post_init__(self) -> None:
        total = int(self.sizes.sum())
        shapes = (self.weights.shape, self.means.shape, self.variances.shape)
        if shapes != ((total,), (total, self.dim), (total, self.dim)) or not np.all(self.sizes >= 1):
            raise ValueError(f"sizes sum to {total} Gaussians, but weights, means and variances have shapes {shapes}")
        for name, values in (("weights", self.weights), ("variances", self.variances)):
            if not (np.all(np.isfinite(values)) and np.all(values > 0)):
                raise ValueError(f"{name} must be positive and finite: the smallest is {np.min(values)}")
        if not np.all(np.isfinite(self.means)):
            raise ValueError("means must be finite: look for frames that are not")

    @property
    def dim(self) -> int:
        """F, the number of features."""
        return int(self.means.shape[-1])

    @property
    def num_pdfs(self) -> int:
        """P."""
        return len(self.sizes)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(P,) the index of the first Gaussian of each pdf."""
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def linear_terms(self) -> FloatArray:
        """(2F + 1, G): log w_g N(x) = [x, x^2, 1] @ linear_terms."""
        precisions = 1.0 / self.variances
        constants = np.log(self.weights) - 0.5 * (
            self.dim * math.log(2 * math.pi) + np.log(self.variances).sum(1) + (self.means**2 * precisions).sum(1)
        )
        return np.ascontiguousarray(
            np.concatenate([self.means * precisions, -0.5 * precisions, constants[:, None]], 1).T
        )

    def loglikes(self, feats_TF: NDArray[np.float32]) -> NDArray[np.float32]:
        """(T, P) natural log-likelihoods of all frames under all pdfs, in float32 and on one thread.

        Raises:
            ValueError: the frames do not have F features or are not finite.
        """
        check_frames(feats_TF, self.dim)
        groups, terms = self._by_size
        x = torch.from_numpy(np.array(feats_TF, dtype=np.float32))
        scores = torch.empty(len(x), self.num_pdfs)
        with one_thread(), torch.inference_mode():
            expanded = torch.cat([x, x * x], 1)
            for pdfs, size, begin in groups:
                columns = slice(begin, begin + len(pdfs) * size)
                gaussians = torch.addmm(terms[-1, columns], expanded, terms[:-1, columns])
                scores[:, pdfs] = gaussians if size == 1 else gaussians.view(len(x), size, len(pdfs)).logsumexp(1)
        return scores.numpy()

    @cached_property
    def _by_size(self) -> tuple[list[tuple[torch.Tensor, int, int]], torch.Tensor]:
        """Pdfs grouped by size, so that one reshape sums over their Gaussians.

        The first Gaussians of all pdfs of a size come first, then the second ones: a sum over rows is twice as fast.
        """
        groups: list[tuple[torch.Tensor, int, int]] = []
        order: list[NDArray[np.int64]] = []
        begin = 0
        for size in np.unique(self.sizes):
            pdfs = np.flatnonzero(self.sizes == size)
            groups.append((torch.from_numpy(pdfs), int(size), begin))
            order.append((np.arange(size)[:, None] + self.starts[pdfs]).ravel())
            begin += len(pdfs) * int(size)
        gaussians = np.concatenate(order)
        return groups, torch.from_numpy(self.linear_terms[:, gaussians].astype(np.float32))

    def to_library(self) -> khg.AmDiagGmm:
        """The mixtures as the library's object (float32), for its aligner."""
        library = khg.AmDiagGmm()
        for start, size in zip(self.starts, self.sizes, strict=True):
            part = slice(start, start + size)
            mixture = khg.DiagGmm(nmix=int(size), dim=self.dim)
            mixture.set_weights(self.weights[part].astype(np.float32))
            mixture.set_means(np.ascontiguousarray(self.means[part], dtype=np.float32))
            mixture.set_invvars(np.ascontiguousarray(1.0 / self.variances[part], dtype=np.float32))
            mixture.compute_gconsts()
            library.add_pdf(mixture)
        return library

    def __getstate__(self) -> dict[str, NDArray]:
        """The four arrays without derived values, to send little between processes."""
        return {name: self.__dict__[name] for name in ("sizes", "weights", "means", "variances")}


def one_gaussian_each(mean_F: FloatArray, variance_F: FloatArray, num_pdfs: int) -> Mixtures:
    """Mixtures of one Gaussian, the same for all pdfs: the flat start."""
    ones = np.ones(num_pdfs)
    return Mixtures(ones.astype(np.int64), ones, np.tile(mean_F, (num_pdfs, 1)), np.tile(variance_F, (num_pdfs, 1)))


def check_frames(feats_TF: NDArray[np.float32], dim: int) -> None:
    """Raise ValueError unless `feats_TF` has shape (T, dim) and only finite values."""
    if feats_TF.ndim != 2 or feats_TF.shape[1] != dim:
        raise ValueError(f"features of shape {feats_TF.shape} where (frames, {dim}) is needed: extract them again")
    if not np.isfinite(feats_TF).all():
        bad = np.flatnonzero(~np.isfinite(feats_TF).all(1))
        raise ValueError(f"{len(bad)} frames hold values that are not finite, the first is frame {bad[0]}")


class Additive:
    """Sums over parts of a corpus, which add up field by field."""

    def __add__(self, other: Self) -> Self:
        made: Callable[..., Self] = type(self)
        return made(*(own + more for own, more in zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass(frozen=True)
class MixtureStats(Additive):
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
