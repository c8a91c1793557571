"""Extractor of i-vectors: Gaussian means that move with a point phi of low dimension, phi ~ N(0, I).

    mean of Gaussian c:  m_c + T_c phi
    posterior of phi:    L = I + sum_c N_c T_c' S_c^-1 T_c      phi = L^-1 sum_c T_c' S_c^-1 F_c
    EM:                  T_c = (sum_u F_uc phi_u') (sum_u N_uc (phi_u phi_u' + L_u^-1))^-1

m, S: means and variances of the background model; N, F: sums over the frames (`statistics.py`). ' is the transpose.
Dehak et al. 2011; Karafiat et al. 2011; Saon et al. 2013.

Shapes: C Gaussians, F features, D values of an i-vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from murmur.speech.ivector.statistics import Sums
from murmur.speech.ivector.ubm import FloatArray, Progress, Ubm, UbmConfig, ignore_progress

FIRST_SIZE = 0.1  # of the random start, in standard deviations of the features
LEAST_COUNT = 1e-3  # frames of all utterances at which a Gaussian's matrix is estimated anew


@dataclass(frozen=True)
class IvectorConfig:
    """Settings of i-vectors.

    Attributes:
        dims: values D of an i-vector.
        passes: passes of EM.
        scale: posterior scale of the sums.
        utterances: utterances of a speaker that share an i-vector in training, so that networks see several of each;
            0: all of them.
        seed: seed of the random start.
        ubm: settings of the background model.
    """

    dims: int = 30
    passes: int = 10
    scale: float = 0.1
    utterances: int = 2
    seed: int = 0
    ubm: UbmConfig = field(default_factory=UbmConfig)

    def __post_init__(self) -> None:
        if self.dims < 1 or self.passes < 0 or self.utterances < 0 or not 0 < self.scale <= 1:
            raise ValueError(
                f"{self}: dims must be at least 1, passes and utterances not negative, and scale above 0 and at most 1"
            )


@dataclass(frozen=True, eq=False)
class Extractor:
    """A trained extractor.

    Attributes:
        ubm: background model.
        matrix: (C, F, D) T_c of each Gaussian.
    """

    ubm: Ubm
    matrix: FloatArray

    def __post_init__(self) -> None:
        if self.matrix.ndim != 3 or self.matrix.shape[:2] != self.ubm.means.shape:
            raise ValueError(f"a matrix {self.matrix.shape} does not belong to means {self.ubm.means.shape}")

    @property
    def dims(self) -> int:
        """Values D of an i-vector."""
        return int(self.matrix.shape[2])

    @cached_property
    def _scaled(self) -> FloatArray:
        """(C, F, D) S_c^-1 T_c."""
        return self.matrix / self.ubm.variances[..., None]

    @cached_property
    def _products(self) -> FloatArray:
        """(C, D, D) T_c' S_c^-1 T_c."""
        return np.einsum("cfd,cfe->cde", self.matrix, self._scaled)

    def posterior(self, sums: Sums) -> tuple[FloatArray, FloatArray]:
        """The mean (D,) and the precision L (D, D) of phi."""
        precision_DD = np.eye(self.dims) + np.einsum("c,cde->de", sums.counts, self._products)
        return np.linalg.solve(precision_DD, self._projected(sums)), precision_DD

    def ivector(self, sums: Sums) -> FloatArray:
        """The i-vector (D,): the mean of phi; 0 without frames."""
        return self.posterior(sums)[0]

    def gain(self, sums: Sums) -> float:
        """Log-likelihood of the sums with phi integrated out, less that at phi = 0."""
        mean_D, precision_DD = self.posterior(sums)
        return 0.5 * float(mean_D @ self._projected(sums) - np.linalg.slogdet(precision_DD)[1])

    def _projected(self, sums: Sums) -> FloatArray:
        projected_D: FloatArray = np.einsum("cfd,cf->d", self._scaled, sums.first)
        return projected_D


def train_extractor(
    ubm: Ubm, groups: Sequence[Sums], config: IvectorConfig, progress: Progress = ignore_progress
) -> tuple[Extractor, list[float]]:
    """An extractor from the sums of groups of utterances, and the mean gain of a group before each pass and at the end.

    `progress` is called after each pass.

    Raises:
        ValueError: there is no group.
    """
    if not groups:
        raise ValueError("there are no utterances to train an extractor of i-vectors on")
    draw = np.random.default_rng(config.seed).standard_normal((*ubm.means.shape, config.dims))
    extractor = Extractor(ubm, FIRST_SIZE * np.sqrt(ubm.variances)[..., None] * draw)
    course = []
    for number in range(config.passes):
        course.append(float(np.mean([extractor.gain(sums) for sums in groups])))
        extractor = _pass(extractor, groups)
        progress("i-vector extractor", number + 1, config.passes, course[-1])
    course.append(float(np.mean([extractor.gain(sums) for sums in groups])))
    return extractor, course


def _pass(extractor: Extractor, groups: Sequence[Sums]) -> Extractor:
    """One pass of EM."""
    count, dims = len(extractor.ubm.weights), extractor.dims
    cross_CFD, square_CDD = np.zeros_like(extractor.matrix), np.zeros((count, dims, dims))
    total_C = np.zeros(count)
    for sums in groups:
        mean_D, precision_DD = extractor.posterior(sums)
        second_DD = np.outer(mean_D, mean_D) + np.linalg.inv(precision_DD)
        cross_CFD += sums.first[..., None] * mean_D
        square_CDD += sums.counts[:, None, None] * second_DD
        total_C += sums.counts
    seen_C = total_C >= LEAST_COUNT
    matrix = extractor.matrix.copy()
    matrix[seen_C] = np.linalg.solve(square_CDD[seen_C], cross_CFD[seen_C].transpose(0, 2, 1)).transpose(0, 2, 1)
    return Extractor(extractor.ubm, matrix)
