"""Stationary distances: closed forms against long recursions, and against the strategies in virtual time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from murmur.core.learner import Strategy
from murmur.core.mixing import Mixing, contraction, exponential, matrix, pairwise, randomized_ring, ring, spectral_gap
from murmur.simulation.planner.course import Even, Walk, follow, quadratic
from murmur.simulation.theory.consensus import (
    NoisyQuadratic,
    mode_variance,
    randomized_ring_contraction,
    ring_eigenvalues,
    ring_gap,
)
from murmur.strategies import ADPSGD
from murmur.strategies.delay_by_one import DelayByOne
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds

COORDINATES, ROUNDS, RATE = 256, 120, 0.3
QUADRATIC = NoisyQuadratic(curvature=1.0, variance=COORDINATES, rate=RATE)
# Every coordinate is the same experiment: the error of a mean over half the rounds is that of about 256 * 20
# independent squares of normal numbers, 2 %.
TOLERANCE = 0.08


@pytest.mark.parametrize("learners", [3, 4, 8, 9, 32])
def test_ring(learners: int) -> None:
    T = matrix(ring, 0, range(learners))
    assert np.allclose(sorted(ring_eigenvalues(learners)), torch.linalg.eigvalsh(T).numpy(), atol=1e-12)
    assert ring_gap(learners) == pytest.approx(spectral_gap(T), abs=1e-12)


def test_the_gap_of_a_long_ring() -> None:
    assert ring_gap(128) == pytest.approx(4 * math.pi**2 / (3 * 128**2), rel=2e-3)


@pytest.mark.parametrize("learners", [3, 4, 8, 16])
def test_randomized_ring(learners: int) -> None:
    rho, rounds = randomized_ring_contraction(learners), 1000
    mean = sum(matrix(randomized_ring, k, range(learners)) for k in range(rounds)) / rounds
    off = torch.eye(learners, dtype=torch.float64) - 1 / learners
    assert torch.allclose(mean @ off, rho * off, atol=0.06)
    assert contraction(randomized_ring, learners, rounds) == pytest.approx(rho, abs=0.06)


@pytest.mark.parametrize("closed_form", [ring_eigenvalues, randomized_ring_contraction])
def test_two_learners_make_no_ring(closed_form: object) -> None:
    with pytest.raises(ValueError, match="at least 3 learners, got 2"):
        closed_form(2)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("eigenvalue", "step", "delay"), [(1.0, 0.3, 0), (1.0, 0.3, 2), (-1 / 3, 0.2, 1), (0.8, 0.1, 3)]
)
def test_one_mode(eigenvalue: float, step: float, delay: int) -> None:
    draw = np.random.default_rng(0)
    z = np.zeros((delay + 1, 4000))
    for _ in range(300):
        new = eigenvalue * z[0] - step * z[delay] + draw.standard_normal(4000)
        z = np.concatenate([new[None], z[:-1]])
    assert mode_variance(eigenvalue, step, delay) == pytest.approx(z[0].var(), rel=0.1)  # 4 standard errors
    if delay == 0:
        assert mode_variance(eigenvalue, step) == pytest.approx(1 / (1 - (eigenvalue - step) ** 2), rel=1e-12)


def test_what_does_not_rest() -> None:
    assert math.isinf(mode_variance(1.0, 2.01))
    assert math.isinf(mode_variance(1.0, 1.01, delay=1))
    assert math.isfinite(mode_variance(1.0, 0.99, delay=1))
    assert math.isinf(NoisyQuadratic(1.0, 1.0, 1.3).randomized_distance_square(16))


@pytest.mark.parametrize("learners", [4, 9])
def test_any_mixing_agrees_with_the_closed_forms(learners: int) -> None:
    assert QUADRATIC.distance_square_through(ring, learners) == pytest.approx(
        QUADRATIC.distance_square(ring_eigenvalues(learners)), rel=1e-9
    )
    assert QUADRATIC.distance_square_through(randomized_ring, learners, 3000) == pytest.approx(
        QUADRATIC.randomized_distance_square(learners), rel=0.01
    )


def at_rest(values: list[float]) -> float:
    later = values[len(values) // 2 :]
    return sum(later) / len(later)


@pytest.mark.parametrize(
    ("strategy", "learners", "wanted"),
    [
        (ADPSGD(ring), 4, QUADRATIC.distance_square(ring_eigenvalues(4))),
        (ADPSGD(ring), 16, QUADRATIC.distance_square(ring_eigenvalues(16))),
        (ADPSGD(randomized_ring), 8, QUADRATIC.randomized_distance_square(8)),
        (ADPSGD(pairwise), 8, QUADRATIC.distance_square_through(pairwise, 8)),
        (ADPSGD(exponential), 8, QUADRATIC.distance_square_through(exponential, 8)),
        (DelayByOne(), 8, QUADRATIC.distance_square([1.0, *[0.0] * 7])),
        (DelayByOne(ring), 5, QUADRATIC.distance_square(ring_eigenvalues(5))),
    ],
    ids=["ring of 4", "ring of 16", "randomised ring", "pairwise", "exponential", "delay by one", "its ring"],
)
def test_learners_of_equal_speed(strategy: Strategy, learners: int, wanted: float) -> None:
    walk = Walk(quadratic(torch.zeros(COORDINATES), 1.0, 1.0), RATE, seed=learners)
    course = follow(strategy, Cluster(learners=learners, compute=Even()), walk, learners * ROUNDS)
    assert at_rest(course.distance_square) == pytest.approx(wanted, rel=TOLERANCE)
    assert at_rest(course.consensus_square) == pytest.approx(QUADRATIC.consensus_square(learners), rel=2 * TOLERANCE)


@pytest.mark.parametrize("mixing", [ring, randomized_ring])
def test_learners_out_of_step_are_closer(mixing: Mixing) -> None:
    """Between steps some learners have averaged since their latest step: the closed form is an upper limit."""
    walk = Walk(quadratic(torch.zeros(COORDINATES), 1.0, 1.0), RATE)
    cluster = Cluster(learners=8, compute=LognormalSeconds(0.1, 0.2))
    found = at_rest(follow(ADPSGD(mixing), cluster, walk, 8 * ROUNDS).distance_square)
    assert 0.3 < found / QUADRATIC.distance_square_through(mixing, 8, 1000) < 1
