"""Largest rates: closed forms against roots, and against strategies just below and just above them."""

from __future__ import annotations

import cmath
import math

import pytest
import torch

from murmur.core.learner import Strategy
from murmur.core.mixing import randomized_ring, ring
from murmur.simulation.planner.course import Even, Walk, follow, quadratic
from murmur.simulation.theory.consensus import randomized_ring_contraction, ring_eigenvalues
from murmur.simulation.theory.stability import (
    companion,
    largest_mixed_step,
    largest_randomized_step,
    largest_step,
    radius,
)
from murmur.strategies import ADPSGD, ASGD, KAVG, SyncSGD
from murmur.strategies.delay_by_one import DelayByOne
from murmur.worlds.virtual.cluster import Cluster


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
    assert largest_mixed_step(ring_eigenvalues(8), delay=1) == pytest.approx(1, rel=1e-6)
    assert largest_mixed_step([1.0], delay=3) == pytest.approx(largest_step(3))


def test_a_delay_is_not_negative() -> None:
    for call in (lambda: largest_step(-1), lambda: companion(1.0, 0.1, -1)):
        with pytest.raises(ValueError, match="-1"):
            call()


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
