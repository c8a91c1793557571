"""The test bed: one learner against a plain loop, L lock-step learners against the L-fold minibatch."""

from __future__ import annotations

import pytest
import torch

from murmur.simulation.planner.course import Walk, cosine, follow, quadratic
from murmur.strategies import ADPSGD, ASGD, KAVG, SyncSGD
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds

START = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def noise_of(n: int, seed: int) -> torch.Tensor:
    return torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(1_000_003 * seed + n))


@pytest.mark.parametrize("learners", [1, 3])
def test_against_a_plain_loop(learners: int) -> None:
    walk, w, norms = Walk(cosine(START, 0.2), 0.1, seed=5), START.clone(), []
    for k in range(20):
        noise = torch.stack([noise_of(learners * k + i, 5) for i in range(learners)]).mean(0)
        w = w - 0.1 * (torch.sin(w) + 0.2 * noise)
        norms.append(float(torch.sin(w).square().sum()))
    course = follow(SyncSGD(), Cluster(learners=learners), walk, 20 * learners)
    assert torch.allclose(course.weights, w.expand(learners, 3), atol=1e-12)
    assert course.gradient_square == pytest.approx(norms)
    assert max(course.distance_square) < 1e-20
    assert course.staleness == [0] * 20 * learners


@pytest.mark.parametrize("strategy", [ADPSGD(), KAVG(4), ASGD()], ids=lambda s: type(s).__name__)
def test_seeds_name_the_noise(strategy: object) -> None:
    def end(seed: int) -> torch.Tensor:
        walk = Walk(quadratic(START, 1.0, 0.3), 0.1, seed)
        return follow(strategy, Cluster(learners=3, compute=ConstantSeconds(0.1, {2: 2.5})), walk, 30).weights  # type: ignore[arg-type]

    assert torch.equal(end(1), end(1))
    assert not torch.allclose(end(1), end(2))


def test_learners_begin_at_the_start() -> None:
    """Without noise and at rate 0 nothing moves, for every type of the start."""
    course = follow(ADPSGD(), Cluster(learners=4), Walk(quadratic(START.float(), 2.0, 0.0), 0.0), 12)
    assert torch.equal(course.weights, START.expand(4, 3))
    assert course.consensus_square == pytest.approx([float(START @ START)] * 3)
    assert course.gradient_square == pytest.approx([4 * float(START @ START)] * 3)
