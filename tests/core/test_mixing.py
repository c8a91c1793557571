from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from murmur.core.mixing import ALL, Mixing, contraction, matrix, randomized_ring, ring, uniform

VIEWS = st.sets(st.integers(0, 40), min_size=1, max_size=12).map(sorted)


@pytest.mark.parametrize("mixing", ALL.values(), ids=ALL)
@given(k=st.integers(0, 1000), view=VIEWS)
def test_symmetric_and_doubly_stochastic(mixing: Mixing, k: int, view: list[int]) -> None:
    t = matrix(mixing, k, view)
    assert torch.equal(t, t.T)
    assert torch.allclose(t.sum(1), torch.ones(len(view), dtype=torch.float64))
    assert (t >= 0).all()
    assert (t.diagonal() > 0).all()
    for learner in view:  # no lost learner is a neighbour
        assert set(mixing(k, view, learner)) <= set(view)


@pytest.mark.parametrize("mixing", ALL.values(), ids=ALL)
@pytest.mark.parametrize("learners", [2, 3, 4, 7, 8, 16])
def test_rounds_reach_all_learners(mixing: Mixing, learners: int) -> None:
    """The product of many rounds is the global mean."""
    product = torch.eye(learners, dtype=torch.float64)
    for k in range(1000):
        product = product @ matrix(mixing, k, range(learners))
    assert torch.allclose(product, torch.full_like(product, 1 / learners), atol=1e-6)


@pytest.mark.parametrize("learners", [4, 8, 16])
def test_the_randomised_ring_contracts_whatever_its_size(learners: int) -> None:
    wanted = (learners - 3) / (3 * (learners - 1))
    energy = 0.0  # E tr(T'T - J) / (L - 1): the mean over directions, which needs fewer rounds than the worst one
    for k in range(300):
        t = matrix(randomized_ring, k, range(learners))
        energy += float((t.T @ t).trace() - 1) / (learners - 1) / 300
    assert energy == pytest.approx(wanted, abs=1e-9)
    assert contraction(randomized_ring, learners, 2000) == pytest.approx(wanted, rel=0.25)
    if learners == 16:
        assert contraction(ring, learners) > 2.5 * contraction(randomized_ring, learners, 2000)


def test_the_mean_ends_all_disagreement() -> None:
    assert contraction(uniform, 8) == pytest.approx(0.0, abs=1e-12)


def test_rounds_differ_and_repeat() -> None:
    rows = [randomized_ring(k, range(16), 3) for k in range(20)]
    assert len({tuple(row) for row in rows}) > 10
    assert rows == [randomized_ring(k, range(16), 3) for k in range(20)]
