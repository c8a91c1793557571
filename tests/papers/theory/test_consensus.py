"""Stationary distances: closed forms against long recursions, and against the strategies in virtual time."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
import torch

from murmur.core.learner import Strategy
from murmur.core.mixing import Mixing, contraction, exponential, matrix, pairwise, randomized_ring, ring, uniform
from murmur.simulation.planner.course import Even, Walk, cosine, follow, quadratic
from murmur.strategies import ADPSGD, ASGD, KAVG, SyncSGD
from murmur.strategies.delay_by_one import DelayByOne
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds
from murmur_papers.theory.consensus import (
    NoisyQuadratic,
    effective_cosine_rate,
    largest_mixed_step,
    largest_randomized_step,
    largest_step,
    mode_variance,
    radius,
    randomized_ring_contraction,
    ring_eigenvalues,
    ring_gap,
    spectral_gap,
)

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


@pytest.mark.parametrize(("learners", "gap"), [(3, 1.0), (4, 0.6667), (8, 0.1953), (16, 0.0507), (64, 0.00321)])
def test_the_ring_by_its_closed_form(learners: int, gap: float) -> None:
    eigenvalues = [(1 + 2 * math.cos(2 * math.pi * j / learners)) / 3 for j in range(1, learners)]
    got = spectral_gap(matrix(ring, 0, range(learners)))
    assert got == pytest.approx(1 - max(map(abs, eigenvalues)), abs=1e-9)
    assert got == pytest.approx(gap, abs=6e-5)


def test_the_mean_has_the_largest_gap() -> None:
    assert spectral_gap(matrix(uniform, 0, range(8))) == pytest.approx(1.0)


def test_the_gap_of_a_long_ring() -> None:
    assert ring_gap(128) == pytest.approx(4 * math.pi**2 / (3 * 128**2), rel=2e-3)


@pytest.mark.parametrize("learners", [3, 4, 8, 16])
def test_randomized_ring(learners: int) -> None:
    rho, rounds = randomized_ring_contraction(learners), 1000
    mean = sum(matrix(randomized_ring, k, range(learners)) for k in range(rounds)) / rounds
    off = torch.eye(learners, dtype=torch.float64) - 1 / learners
    assert torch.allclose(mean @ off, rho * off, atol=0.06)
    assert contraction(randomized_ring, learners, rounds) == pytest.approx(rho, abs=0.06)


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
    alone = QUADRATIC.rate**2 * QUADRATIC.variance / learners * mode_variance(1.0, QUADRATIC.step)
    assert at_rest(course.consensus_square) == pytest.approx(alone, rel=2 * TOLERANCE)


@pytest.mark.parametrize("mixing", [ring, randomized_ring])
def test_learners_out_of_step_are_closer(mixing: Mixing) -> None:
    """Between steps some learners have averaged since their latest step: the closed form is an upper limit."""
    walk = Walk(quadratic(torch.zeros(COORDINATES), 1.0, 1.0), RATE)
    cluster = Cluster(learners=8, compute=LognormalSeconds(0.1, 0.2))
    found = at_rest(follow(ADPSGD(mixing), cluster, walk, 8 * ROUNDS).distance_square)
    assert 0.3 < found / QUADRATIC.distance_square_through(mixing, 8, 1000) < 1


@pytest.mark.parametrize("delay", range(8))
def test_a_root_reaches_the_circle(delay: int) -> None:
    limit = largest_step(delay)
    assert radius(1.0, limit, delay) == pytest.approx(1.0, abs=1e-9)
    assert radius(1.0, limit * 0.98, delay) < 1 < radius(1.0, limit * 1.02, delay)
    z = cmath.exp(1j * math.pi / (2 * delay + 1))
    assert abs(z ** (delay + 1) - z**delay + limit) < 1e-12


def test_known_limits() -> None:
    assert largest_step(0) == pytest.approx(2)
    assert largest_step(1) == pytest.approx(1)
    assert largest_step(50) == pytest.approx(math.pi / 101, rel=1e-3)
    assert largest_mixed_step([1.0, 0.0, 0.0]) == pytest.approx(1)  # delay by one
    assert largest_mixed_step(ring_eigenvalues(8)) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("strategy", "learners", "limit"),
    [
        (SyncSGD(), 2, largest_step(0)),
        (KAVG(4), 2, largest_step(0)),
        (DelayByOne(), 4, largest_mixed_step([1.0, 0.0, 0.0, 0.0])),
        (ADPSGD(ring), 4, largest_mixed_step(ring_eigenvalues(4))),
        (ADPSGD(ring), 5, largest_mixed_step(ring_eigenvalues(5))),
        (ADPSGD(randomized_ring), 16, largest_randomized_step(randomized_ring_contraction(16))),
        (ASGD(), 3, largest_step(1)),
        (ASGD(), 5, largest_step(3)),
        (ASGD(), 9, largest_step(7)),
    ],
    ids=["SyncSGD", "KAVG", "DelayByOne", "ring 4", "ring 5", "randomised 16", "server 2", "server 4", "server 8"],
)
def test_strategies_stand_what_theory_says(strategy: Strategy, learners: int, limit: float) -> None:
    """A disturbance decays at 0.94 of the limit and grows at 1.06; a server of n learners has gradients n - 1 old."""

    def grown(share: float) -> float:
        walk = Walk(quadratic(torch.zeros(64), 1.0, 1.0), share * limit)
        course = follow(strategy, Cluster(learners=learners, compute=Even()), walk, 160 * learners)
        squares = [a + b for a, b in zip(course.consensus_square, course.distance_square, strict=True)]
        return sum(squares[-20:]) / sum(squares[60:80])

    assert grown(0.94) < 3
    assert grown(1.06) > 30


@pytest.mark.parametrize("noise", [0.7, 1.4])
def test_spread_learners_slow_themselves_down(noise: float) -> None:
    rate, P = 0.5, 1024
    start = torch.full((P,), 0.5, dtype=torch.float64)
    course = follow(ADPSGD(ring), Cluster(learners=8, compute=Even()), Walk(cosine(start, noise), rate), 8 * 40)
    later = slice(10, None)
    spread = sum(course.distance_square[later]) / len(course.distance_square[later]) / P
    agreement = sum(course.agreement[later]) / len(course.agreement[later])
    assert spread > 0.1
    assert rate * agreement == pytest.approx(effective_cosine_rate(rate, spread), rel=0.05)


def test_synchronous_learners_see_the_full_rate() -> None:
    start = torch.full((8,), 0.5, dtype=torch.float64)
    course = follow(SyncSGD(), Cluster(learners=4), Walk(cosine(start, 1.0), 0.5), 40)
    assert course.agreement == pytest.approx([1.0] * 10)
