"""Universal background model: one mixture of diagonal Gaussians for all speech, trained by EM.

    log p(x) = log sum_c w_c N(x; m_c, diag(v_c))

Shapes: N or T frames, F features, C Gaussians.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
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

    def log_joint(self, x_TF: NDArray) -> FloatArray:
        """(T, C) log w_c N(x; m_c, v_c)."""
        precision_CF = 1 / self.variances
        constant_C = np.log(self.weights) - 0.5 * (
            math.log(2 * math.pi) * self.means.shape[1]
            + np.log(self.variances).sum(1)
            + (self.means**2 * precision_CF).sum(1)
        )
        x_TF = x_TF.astype(np.float64)
        return constant_C + x_TF @ (self.means * precision_CF).T - 0.5 * x_TF**2 @ precision_CF.T

    def posteriors(self, x_TF: NDArray) -> tuple[FloatArray, FloatArray]:
        """(T, C) posteriors of the Gaussians, and (T,) log p(x)."""
        joint_TC = self.log_joint(x_TF)
        most_T1 = joint_TC.max(1, keepdims=True)
        shares_TC = np.exp(joint_TC - most_T1)
        total_T1 = shares_TC.sum(1, keepdims=True)
        return shares_TC / total_T1, (most_T1 + np.log(total_T1))[:, 0]


def ignore_progress(_model: str, _number: int, _passes: int, _value: float) -> None:
    """Do nothing."""


def train_ubm(
    feats: Sequence[NDArray], config: UbmConfig, progress: Progress = ignore_progress
) -> tuple[Ubm, list[float]]:
    """A background model of the frames of all utterances, and the mean log p(x) before each pass and at the end.

    Args:
        feats: (T, F) features of each utterance.
        config: settings; the same settings and frames give the same model.
        progress: function called after each pass.

    Raises:
        ValueError: there are fewer frames than Gaussians.
    """
    frames = sum(map(len, feats))
    if frames < config.gaussians:
        raise ValueError(f"{frames} frames are too few for a background model of {config.gaussians} Gaussians")
    ubm, floor_F = _first(feats, config)
    course = []
    for number in range(config.passes):
        ubm, log_likelihood = _pass(ubm, feats, floor_F)
        course.append(log_likelihood / frames)
        progress("background model", number + 1, config.passes, course[-1])
    course.append(sum(float(ubm.posteriors(x_TF)[1].sum()) for x_TF in _pieces(feats)) / frames)
    return ubm, course


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


def _pass(ubm: Ubm, feats: Sequence[NDArray], floor_F: FloatArray) -> tuple[Ubm, float]:
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
