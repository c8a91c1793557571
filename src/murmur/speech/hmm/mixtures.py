"""Mixtures of diagonal Gaussians, one mixture per pdf.

    log p(x | pdf) = log sum_g w_g N(x; mu_g, diag(sigma_g^2))

Shapes: T frames, F features, G Gaussians of all pdfs (those of one pdf are adjacent), P pdfs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

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
