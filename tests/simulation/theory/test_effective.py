"""Effective rate of the consensus on cosines: E sin(w + s n) = exp(-s^2 / 2) sin w."""

from __future__ import annotations

import math

import pytest
import torch

from murmur.core.mixing import ring
from murmur.simulation.planner.course import Even, Walk, cosine, follow
from murmur.simulation.theory.effective import effective_cosine_rate, effective_rate, smoothed_smoothness
from murmur.strategies import ADPSGD, SyncSGD
from murmur.worlds.virtual.cluster import Cluster


def test_definition() -> None:
    g = torch.tensor([3.0, 4.0])
    assert effective_rate(0.1, 0.5 * g, g) == pytest.approx(0.05)
    assert effective_rate(0.1, torch.tensor([-4.0, 3.0]), g) == pytest.approx(0)
    with pytest.raises(ValueError, match="stationary point"):
        effective_rate(0.1, g, 0 * g)


def test_smoothing() -> None:
    """|x| has no curvature bound; smoothed with spread s its largest one is sqrt(2 / pi) / s, below 2 / s."""
    assert smoothed_smoothness(1.0, 0.5) == 4.0 > math.sqrt(2 / math.pi) / 0.5
    with pytest.raises(ValueError, match="above 0, got 0"):
        smoothed_smoothness(1.0, 0)


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
