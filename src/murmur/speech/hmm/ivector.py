"""i-vectors: Gaussian means that move with a point phi of low dimension, phi ~ N(0, I).

    background model:    log p(x) = log sum_c w_c N(x; m_c, diag(S_c)), one mixture for all speech
    mean of Gaussian c:  m_c + T_c phi
    sums:                N_c = s sum_t p(c | x_t)      F_c = s sum_t p(c | x_t) (x_t - m_c)
    posterior of phi:    L = I + sum_c N_c T_c' S_c^-1 T_c      phi = L^-1 sum_c T_c' S_c^-1 F_c
    EM:                  T_c = (sum_u F_uc phi_u') (sum_u N_uc (phi_u phi_u' + L_u^-1))^-1

s: posterior scale, below 1 because neighbouring frames are not independent. ' is the transpose. Dehak et al. 2011;
Karafiat et al. 2011; Saon et al. 2013.

Shapes: T frames, C Gaussians, F features, D values of an i-vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from murmur.speech.corpus.file_content import making_sense_of
from murmur.speech.hmm.mixtures import Additive, FloatArray
from murmur.speech.hmm.storage import AGAIN, floats_of, read_with_header, write_with_header

Progress = Callable[[str, int, int, float], None]  # model, pass, passes, and what EM raises, before the pass
AT_ONCE = 20_000  # frames whose posteriors are in memory
APART = 0.1  # standard deviations between Gaussians that would begin alike
LEAST_FRAMES = 1.0  # of a Gaussian that is estimated anew; those with less keep their values


@dataclass(frozen=True)
class UbmConfig:
    """Settings of the background model.

    Attributes:
        gaussians: number of Gaussians.
        passes: passes of EM.
        floor: smallest variance, relative to that of all frames.
        seed: seed of the frames from which the means start.
    """

    gaussians: int = 64
    passes: int = 10
    floor: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if self.gaussians < 1 or self.passes < 0 or not self.floor > 0:
            raise ValueError(f"{self}: gaussians must be at least 1, passes not negative, and floor above 0")


@dataclass(frozen=True, eq=False)
class Ubm:
    """A background model.

    Attributes:
        weights: (C,) weights, with sum 1.
        means: (C, F) means.
        variances: (C, F) variances.
    """

    weights: FloatArray
    means: FloatArray
    variances: FloatArray

    def __post_init__(self) -> None:
        shape = self.means.shape
        if len(shape) != 2 or self.weights.shape != shape[:1] or self.variances.shape != shape:
            raise ValueError(
                f"weights {self.weights.shape}, means {shape} and variances {self.variances.shape} are not of one model"
            )
        if not (self.variances > 0).all() or not (self.weights > 0).all():
            raise ValueError("weights and variances of a background model must be above 0")

    def posteriors(self, x_TF: NDArray) -> tuple[FloatArray, FloatArray]:
        """(T, C) posteriors of the Gaussians, and (T,) log p(x)."""
        precision_CF = 1 / self.variances
        constant_C = np.log(self.weights) - 0.5 * (
            math.log(2 * math.pi) * self.means.shape[1]
            + np.log(self.variances).sum(1)
            + (self.means**2 * precision_CF).sum(1)
        )
        x_TF = x_TF.astype(np.float64)
        joint_TC = constant_C + x_TF @ (self.means * precision_CF).T - 0.5 * x_TF**2 @ precision_CF.T
        most_T1 = joint_TC.max(1, keepdims=True)
        shares_TC = np.exp(joint_TC - most_T1)
        total_T1 = shares_TC.sum(1, keepdims=True)
        return shares_TC / total_T1, (most_T1 + np.log(total_T1))[:, 0]


def ignore_progress(_model: str, _number: int, _passes: int, _value: float) -> None:
    """Do nothing."""


def train_ubm(feats: Sequence[NDArray], config: UbmConfig, progress: Progress = ignore_progress) -> Ubm:
    """A background model of the frames (T, F) of all utterances; `progress` is called after each pass.

    Raises:
        ValueError: there are fewer frames than Gaussians.
    """
    frames = sum(map(len, feats))
    if frames < config.gaussians:
        raise ValueError(f"{frames} frames are too few for a background model of {config.gaussians} Gaussians")
    ubm, floor_F = _first(feats, config)
    for number in range(config.passes):
        ubm, log_likelihood = _ubm_pass(ubm, feats, floor_F)
        progress("background model", number + 1, config.passes, log_likelihood / frames)
    return ubm


def _first(feats: Sequence[NDArray], config: UbmConfig) -> tuple[Ubm, FloatArray]:
    """The first Gaussians, and (F,) the smallest variances.

    Weights are equal, means are drawn frames (moved apart where they are equal), the variance is that of all frames.
    """
    ends = np.cumsum([len(x_TF) for x_TF in feats])
    rng = np.random.default_rng(config.seed)
    drawn = np.sort(rng.choice(int(ends[-1]), config.gaussians, replace=False))
    utterances = np.searchsorted(ends, drawn, side="right")
    means_CF = np.stack([feats[u][place - ends[u]] for u, place in zip(utterances, drawn, strict=True)])
    first_F = sum(x_TF.astype(np.float64).sum(0) for x_TF in feats) / ends[-1]
    second_F = sum((x_TF.astype(np.float64) ** 2).sum(0) for x_TF in feats) / ends[-1]
    variance_F = np.maximum(second_F - first_F**2, 1e-10)
    means_CF = means_CF.astype(np.float64)
    _, kept = np.unique(means_CF, axis=0, return_index=True)
    again = np.setdiff1d(np.arange(len(means_CF)), kept)  # equal Gaussians, as of digital silence, would stay equal
    means_CF[again] += APART * np.sqrt(variance_F) * rng.standard_normal((len(again), means_CF.shape[1]))
    weights_C = np.full(config.gaussians, 1 / config.gaussians)
    variances_CF = np.tile(variance_F, (config.gaussians, 1))
    return Ubm(weights_C, means_CF, variances_CF), config.floor * variance_F


def _ubm_pass(ubm: Ubm, feats: Sequence[NDArray], floor_F: FloatArray) -> tuple[Ubm, float]:
    """One pass of EM, and the log-likelihood of the frames under the model before it."""
    counts_C, log_likelihood = np.zeros(len(ubm.weights)), 0.0
    first_CF, second_CF = np.zeros_like(ubm.means), np.zeros_like(ubm.means)
    for x_TF in _pieces(feats):
        posteriors_TC, log_T = ubm.posteriors(x_TF)
        counts_C += posteriors_TC.sum(0)
        first_CF += posteriors_TC.T @ x_TF
        second_CF += posteriors_TC.T @ x_TF.astype(np.float64) ** 2
        log_likelihood += float(log_T.sum())
    seen_C = counts_C >= LEAST_FRAMES
    n_C1 = np.where(seen_C, counts_C, 1.0)[:, None]
    means_CF = np.where(seen_C[:, None], first_CF / n_C1, ubm.means)
    variances_CF = np.where(seen_C[:, None], second_CF / n_C1 - means_CF**2, ubm.variances)
    weights_C = np.maximum(counts_C, 1e-10)
    return Ubm(weights_C / weights_C.sum(), means_CF, np.maximum(variances_CF, floor_F)), log_likelihood


def _pieces(feats: Sequence[NDArray]) -> Iterator[NDArray]:
    for x_TF in feats:
        for begin in range(0, len(x_TF), AT_ONCE):
            yield x_TF[begin : begin + AT_ONCE]


@dataclass(frozen=True, eq=False)
class Sums(Additive):
    """Sums over the frames of one or several utterances.

    Attributes:
        counts: (C,) N_c.
        first: (C, F) F_c.
    """

    counts: FloatArray
    first: FloatArray

    @staticmethod
    def none(ubm: Ubm) -> Sums:
        """The sums over no frame."""
        return Sums(np.zeros_like(ubm.weights), np.zeros_like(ubm.means))

    @staticmethod
    def of(ubm: Ubm, x_TF: NDArray, scale: float) -> Sums:
        """The sums over the frames of an utterance."""
        found = Sums.none(ubm)
        for begin in range(0, len(x_TF), AT_ONCE):
            part_TF = x_TF[begin : begin + AT_ONCE].astype(np.float64)
            posteriors_TC = scale * ubm.posteriors(part_TF)[0]
            counts_C = posteriors_TC.sum(0)
            found += Sums(counts_C, posteriors_TC.T @ part_TF - counts_C[:, None] * ubm.means)
        return found


@dataclass(frozen=True, eq=False)
class StoredSums(Sequence[Sums]):
    """Sums of G groups of utterances in a temporary file.

    Attributes:
        counts: (G, C) N_c of each group, mapped.
        first: (G, C, F) F_c of each group, mapped.
    """

    counts: FloatArray
    first: FloatArray

    @staticmethod
    def of(ubm: Ubm, sums: Iterable[Sums], size: int) -> StoredSums:
        """Write sums, of which one is in memory at a time; `size` is their number."""
        if not size:
            return StoredSums(np.zeros((0, *ubm.weights.shape)), np.zeros((0, *ubm.means.shape)))
        with TemporaryFile() as counts, TemporaryFile() as first:  # the maps keep the files
            found = StoredSums(
                np.memmap(counts, np.float64, "w+", shape=(size, *ubm.weights.shape)),
                np.memmap(first, np.float64, "w+", shape=(size, *ubm.means.shape)),
            )
        for place, own in enumerate(sums):
            found.counts[place], found.first[place] = own.counts, own.first
        return found

    def __getitem__(self, place: Any) -> Any:
        return Sums(np.array(self.counts[place]), np.array(self.first[place]))

    def __len__(self) -> int:
        return len(self.counts)


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
) -> Extractor:
    """An extractor from the sums of groups of utterances; `progress` is called after each pass.

    Raises:
        ValueError: there is no group.
    """
    if not groups:
        raise ValueError("there are no utterances to train an extractor of i-vectors on")
    draw = np.random.default_rng(config.seed).standard_normal((*ubm.means.shape, config.dims))
    extractor = Extractor(ubm, FIRST_SIZE * np.sqrt(ubm.variances)[..., None] * draw)
    for number in range(config.passes):
        gain = float(np.mean([extractor.gain(sums) for sums in groups]))
        extractor = _extractor_pass(extractor, groups)
        progress("i-vector extractor", number + 1, config.passes, gain)
    return extractor


def _extractor_pass(extractor: Extractor, groups: Sequence[Sums]) -> Extractor:
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


Features = Mapping[str, NDArray]


@dataclass(frozen=True, eq=False)
class InOrder(Sequence[NDArray]):
    """The features (T, F) of utterances in byte order of their names, read as they are taken."""

    feats: Features

    @cached_property
    def names(self) -> list[str]:
        """The names of the utterances."""
        return sorted(self.feats, key=str.encode)

    def __getitem__(self, place: Any) -> Any:
        return self.feats[self.names[place]]

    def __len__(self) -> int:
        return len(self.names)


def groups_of(speakers: Mapping[str, str], utterances: int) -> list[tuple[str, ...]]:
    """Groups of up to `utterances` utterances of one speaker, in byte order of their names; 0: of all of them."""
    own: dict[str, list[str]] = {}
    for name in sorted(speakers, key=str.encode):
        own.setdefault(speakers[name], []).append(name)
    groups = []
    for names in own.values():
        size = utterances or len(names)
        groups += [tuple(names[begin : begin + size]) for begin in range(0, len(names), size)]
    return groups


def summed(ubm: Ubm, feats: Features, group: Sequence[str], scale: float) -> Sums:
    """The sums over the utterances of a group."""
    return sum((Sums.of(ubm, feats[name], scale) for name in group), Sums.none(ubm))


def train(
    feats: Features,
    speakers: Mapping[str, str],
    config: IvectorConfig,
    ubm: Ubm | None = None,
    progress: Progress = ignore_progress,
) -> Extractor:
    """An extractor from the frames {utterance: (T, F) features} of training utterances and their speakers.

    Without a background model, one is trained on the same frames. `progress` is called after each pass.

    Raises:
        ValueError: there are too few frames, or no utterance.
    """
    if ubm is None:
        ubm = train_ubm(InOrder(feats), config.ubm, progress)
    groups = groups_of({name: speakers[name] for name in feats}, config.utterances)
    sums = StoredSums.of(ubm, (summed(ubm, feats, group, config.scale) for group in groups), len(groups))
    return train_extractor(ubm, sums, config, progress)


def ivectors(
    extractor: Extractor, feats: Features, speakers: Mapping[str, str], scale: float, utterances: int = 0
) -> dict[str, FloatArray]:
    """The i-vector (D,) of each utterance: that of its group, see `groups_of`."""
    found: dict[str, FloatArray] = {}
    for group in groups_of({name: speakers[name] for name in feats}, utterances):
        found |= dict.fromkeys(group, extractor.ivector(summed(extractor.ubm, feats, group, scale)))
    return {name: found[name] for name in feats}


FORMAT = "murmur i-vectors 1"
UBM_FORMAT = "murmur background model 1"


def save_ubm(ubm: Ubm, path: Path) -> None:
    """Write a background model, replacing an existing file in one step."""
    write_with_header(path, {"format": UBM_FORMAT}, _arrays(ubm))


def load_ubm(path: Path) -> Ubm:
    """Read a background model, equal to the written one to the bit. Raises as `read_with_header` does."""
    _, arrays = read_with_header(path, UBM_FORMAT)
    with making_sense_of(path, AGAIN):
        return _ubm(arrays)


def save_extractor(extractor: Extractor, path: Path) -> None:
    """Write an extractor, replacing an existing file in one step."""
    arrays = {**_arrays(extractor.ubm), "matrix": extractor.matrix}
    write_with_header(path, {"format": FORMAT}, arrays)


def load_extractor(path: Path) -> Extractor:
    """Read an extractor, equal to the written one to the bit. Raises as `read_with_header` does."""
    _, arrays = read_with_header(path, FORMAT)
    with making_sense_of(path, AGAIN):
        return Extractor(_ubm(arrays), floats_of(arrays["matrix"]))


def _arrays(ubm: Ubm) -> dict[str, NDArray]:
    return {"weights": ubm.weights, "means": ubm.means, "variances": ubm.variances}


def _ubm(arrays: Mapping[str, NDArray]) -> Ubm:
    return Ubm(*(floats_of(arrays[name]) for name in ("weights", "means", "variances")))
