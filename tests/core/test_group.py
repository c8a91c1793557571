from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from murmur.core.group import WorldMismatch, check_alike, share_of, weighted_mean

WEIGHTS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 32.0, 640.0, 777.0]), min_size=1, max_size=6).filter(any)


@given(WEIGHTS, st.integers(0, 10**6))
def test_weighted_mean(weights: list[float], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    xs = [torch.randn(7, generator=draw) for _ in weights]
    wanted = sum(w * x.double() for w, x in zip(weights, xs, strict=True)) / sum(weights)
    assert torch.allclose(weighted_mean(xs, weights).double(), wanted, rtol=1e-5, atol=1e-6)


def test_equal_weights_give_the_plain_mean_to_the_bit() -> None:
    xs = [torch.randn(100) for _ in range(3)]
    assert torch.equal(weighted_mean(xs, [770.0] * 3), ((xs[0] + xs[1]) + xs[2]) / 3)


def test_one_contributor_is_copied_to_the_bit() -> None:
    x = torch.randn(100)
    mean = weighted_mean([torch.full((100,), math.nan), x], [0.0, 770.0])
    assert torch.equal(mean, x)
    assert mean.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("weight", [-1.0, math.inf, math.nan])
def test_bad_weights(weight: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        share_of(torch.ones(1), weight)


def test_different_vectors() -> None:
    with pytest.raises(WorldMismatch, match=r"learner 1: \(4,\)"):
        check_alike([torch.zeros(3), torch.zeros(4)], "world")
