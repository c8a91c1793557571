"""The online Fisher estimate against the published recursion with dense matrices, and against true covariances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.engine.optim.natural_gradient.fisher import (
    FisherConfig,
    OnlineFisher,
    SampleRows,
    orthonormal_rows,
    orthonormalised,
)
from tests.support.dense_fisher import DenseFisher


def drawn(rng: np.random.Generator, N: int, D: int, scale: float = 1.0) -> np.ndarray:
    return scale * rng.standard_normal((N, D)) @ (rng.standard_normal((D, D)) * np.linspace(3, 0.1, D))


@pytest.mark.parametrize(("D", "rank", "frames"), [(7, 3, 40), (12, 6, 14), (2, 1, 9), (30, 15, 200)])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_every_call_equals_the_published_recursion(D: int, rank: int, frames: int, scale: float) -> None:
    rng = np.random.default_rng(D)
    config = FisherConfig(alpha=4.0, history_samples=150.0, update_period=3)
    mixing = rng.standard_normal((D, D)) * np.linspace(3, 0.1, D)
    rows = [scale * rng.standard_normal((frames + k % 2, D)) @ mixing for k in range(25)]
    state: dict[str, Any] = {}
    ours = OnlineFisher(state, "in", rank, config)
    dense = DenseFisher(rows[0], rank, 4.0, 150.0, 3)
    for X in rows:
        W, gamma, _ = ours.observe(SampleRows((torch.from_numpy(X),)))
        expected, factor = dense.precondition(X)
        X_hat = torch.from_numpy(X) - torch.from_numpy(X) @ W.T @ W
        np.testing.assert_allclose(X_hat.numpy(), expected, rtol=1e-6, atol=1e-7 * np.abs(X).max())
        assert float(gamma) == pytest.approx(factor, rel=1e-7)
    assert state["in.t"] == 26
    assert state["in.rho"] == pytest.approx(dense.rho, rel=1e-6)
    np.testing.assert_allclose(state["in.d"].numpy(), dense.d, rtol=1e-6)


def test_it_finds_the_covariance_where_that_is_low_rank_plus_identity() -> None:
    """After many frames X^ is beta X (C + alpha/D tr C I)^-1 with the true C."""
    rng = np.random.default_rng(0)
    D, alpha = 20, 1.0
    basis = np.linalg.qr(rng.standard_normal((D, D)))[0]
    C = basis @ np.diag([30.0, 20, 12, 8] + [1.0] * 16) @ basis.T
    factor = np.linalg.cholesky(C)
    state: dict[str, Any] = {}
    fisher = OnlineFisher(state, "in", 4, FisherConfig(alpha=alpha, history_samples=40_000.0, update_period=1))
    for _ in range(150):
        W, _, _ = fisher.observe(SampleRows((torch.from_numpy(rng.standard_normal((2000, D)) @ factor.T),)))
    probes = rng.standard_normal((100, D))
    X_hat = probes - probes @ W.numpy().T @ W.numpy()
    beta = state["in.rho"] * (1 + alpha) + alpha / D * float(state["in.d"].sum())
    exact = beta * probes @ np.linalg.inv(C + alpha / D * np.trace(C) * np.eye(D))
    assert np.linalg.norm(X_hat - exact) < 0.03 * np.linalg.norm(exact)


@given(st.integers(2, 9), st.integers(1, 60), st.integers(0, 99), st.sampled_from([1e-4, 1.0, 1e4]))
@settings(deadline=None, max_examples=40)
def test_the_norm_is_kept_and_directions_turn_by_less_than_a_right_angle(
    D: int, N: int, seed: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    fisher = OnlineFisher({}, "in", 4, FisherConfig(history_samples=100.0))
    for _ in range(8):
        X = torch.from_numpy(drawn(rng, N, D, scale))
        W, gamma, _ = fisher.observe(SampleRows((X,)))
        X_hat = gamma * (X - X @ W.T @ W)
        assert float(X_hat.norm()) == pytest.approx(float(X.norm()), rel=1e-3)
        assert float((X * X_hat).sum()) > 0


def test_column_blocks_ones_and_scale_are_one_matrix() -> None:
    torch.manual_seed(0)
    left, right = torch.randn(30, 4).double(), torch.randn(30, 3).double()
    whole = torch.cat((left, right, torch.ones(30, 1)), 1).double() * 5
    config = FisherConfig(rank_in=3)
    for made in (SampleRows((left, right), ones=True, scale=5.0), SampleRows((whole,))):
        assert (made.count, made.dims) == (30, 8)
    one, other = OnlineFisher({}, "in", 3, config), OnlineFisher({}, "in", 3, config)
    for _ in range(4):
        blocks, plain = SampleRows((left, right), ones=True, scale=5.0), SampleRows((whole,))
        (W, gamma, H), (W2, gamma2, H2) = one.observe(blocks), other.observe(plain)
        torch.testing.assert_close(W.T @ W, W2.T @ W2)
        torch.testing.assert_close(gamma, gamma2)
        torch.testing.assert_close(torch.cat(blocks.without(H, W).blocks, 1) * 5, whole - whole @ W.T @ W)
        torch.testing.assert_close(plain.without(H2, W2).blocks[0], whole - whole @ W.T @ W)


def test_dependent_rows_zeros_and_single_values_do_no_harm() -> None:
    fisher = OnlineFisher({}, "in", 5, FisherConfig())
    line = torch.outer(torch.randn(50), torch.randn(12))  # rank one: floors and new axes are needed
    for X in [torch.zeros(6, 12), line, line * 1e-3, torch.zeros(6, 12), torch.randn(50, 12)] * 4:
        W, gamma, _ = fisher.observe(SampleRows((X,)))
        assert bool(W.isfinite().all())
        assert bool(gamma.isfinite())
    W, gamma, _ = OnlineFisher({}, "in", 5, FisherConfig()).observe(SampleRows((torch.randn(8, 1),)))
    assert W.shape == (0, 1)
    assert float(gamma) == 1.0


@pytest.mark.parametrize("calls", [0, 1, 10, 11])  # no estimate yet, an early update, none due, one due
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e30])  # 1e30: the sum of the squares overflows
def test_rows_that_are_not_finite_leave_the_estimate_and_mark_their_gradient(calls: int, bad: float) -> None:
    torch.manual_seed(0)
    state: dict[str, Any] = {}
    fisher = OnlineFisher(state, "in", 4, FisherConfig())
    for _ in range(calls):
        fisher.observe(SampleRows((torch.randn(20, 9),)))
    before = {name: value for name, value in state.items() if name != "in.t"}
    rows = torch.randn(20, 9)
    rows[3, 2] = bad
    W, gamma, H = fisher.observe(SampleRows((rows,)))
    assert not bool((gamma * (rows - H @ W)).isfinite().any())
    assert state.keys() - {"in.t"} == before.keys()
    assert all(state[name] is value for name, value in before.items())


def test_finite_rows_whose_products_overflow_leave_the_estimate() -> None:
    torch.manual_seed(0)
    state: dict[str, Any] = {}
    fisher = OnlineFisher(state, "in", 4, FisherConfig())
    fisher.observe(SampleRows((torch.randn(20, 9),)))
    before, rows = state["in.W"], torch.randn(20, 9) * 1e12
    W, gamma, H = fisher.observe(SampleRows((rows,)))
    assert bool((gamma * (rows - H @ W)).isfinite().all())
    assert state["in.W"] is before


def test_rows_are_made_orthonormal_again() -> None:
    torch.manual_seed(0)
    start = orthonormal_rows(4, 11)
    torch.testing.assert_close(start @ start.T, torch.eye(4).double())
    E = torch.tensor([0.4, 0.3, 0.2, 0.1]).double()
    for bent in (start + 0.05 * torch.randn(4, 11), torch.stack([start[0], start[0] * (1 + 1e-9), start[2], start[3]])):
        R = orthonormalised(E.sqrt()[:, None] * bent, E) / E.sqrt()[:, None]
        torch.testing.assert_close(R @ R.T, torch.eye(4).double(), atol=1e-6, rtol=0)
    kept = E.sqrt()[:, None] * start
    assert orthonormalised(kept, E) is kept


def test_settings_that_make_no_estimate_are_refused() -> None:
    with pytest.raises(ValueError, match="alpha > 0"):
        FisherConfig(alpha=0.0)
    with pytest.raises(ValueError, match="update_period"):
        FisherConfig(update_period=0)
