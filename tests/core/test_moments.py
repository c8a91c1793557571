"""Moments of an optimizer as a vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn, optim

from murmur.core.flat import Layout
from murmur.core.moments import NAMES, STEPS, Moments, WeightsAndMoments
from murmur.core.weights import Weights
from murmur.engine.optim.optimizer import SGD, Adam, NaturalGradientSGD, OptimizerFactory

FACTORIES: list[OptimizerFactory] = [
    Adam(),
    Adam(weight_decay=0.1),
    SGD(momentum=0.9),
    NaturalGradientSGD(momentum=0.5),
]
OTHERS: list[OptimizerFactory] = [
    lambda model: torch.optim.Adam(model.parameters(), amsgrad=True),
]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, n: int) -> None:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(n))
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def backward(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with getattr(optimizer, "preconditioning", nullcontext()):
        model(torch.randn(5, 3, generator=torch.Generator().manual_seed(1))).square().mean().backward()


def weights(model: nn.Module) -> Tensor:
    return Layout.trainable(model).gather()


@pytest.mark.parametrize("factory", FACTORIES + OTHERS)
def test_a_copied_vector_is_the_state_of_the_optimizer(factory: OptimizerFactory) -> None:
    """A learner that takes over weights and moments takes the same steps from then on, to the bit."""
    first = network()
    optimizer = factory(first)
    for n in range(4):
        step(first, optimizer, n)
    second = deepcopy(first)
    late = factory(second)
    moments = Moments(late, Layout.trainable(second))
    moments.set_(Moments(optimizer, Layout.trainable(first)).snapshot())
    for n in range(4, 8):
        step(first, optimizer, n)
        step(second, late, n)
    assert torch.equal(weights(first), weights(second))


@pytest.mark.parametrize("factory", FACTORIES + OTHERS)
def test_moments_are_complete_between_the_first_gradient_and_its_step(factory: OptimizerFactory) -> None:
    """A neighbour may ask at that moment, when natural gradient has state of its own already."""
    model, plain = network(), network()
    optimizer, other = factory(model), factory(plain)
    moments = Moments(optimizer, Layout.trainable(model))
    backward(model, optimizer)
    seen = moments.snapshot()
    optimizer.step()
    assert not seen.any()
    assert len(seen) == moments.numel
    backward(plain, other)
    other.step()
    assert torch.equal(weights(model), weights(plain))


@pytest.mark.parametrize("factory", FACTORIES + OTHERS)
def test_looking_at_moments_changes_nothing(factory: OptimizerFactory) -> None:
    """Before the first step they are 0; weights, gradients and all later steps stay as without the look."""
    plain, seen = network(), network()
    first, second = factory(plain), factory(seen)
    kept = torch.ones_like(next(seen.parameters()))
    next(seen.parameters()).grad = kept
    moments = Moments(second, Layout.trainable(seen))
    assert not moments.snapshot().any()
    assert next(seen.parameters()).grad is kept
    second.zero_grad()
    for n in range(3):
        step(plain, first, n)
        step(seen, second, n)
        moments.set_(moments.snapshot())
    assert torch.equal(weights(plain), weights(seen))


def test_the_vector_of_adam() -> None:
    model = network()
    optimizer = Adam()(model)
    moments = Moments(optimizer, Layout.trainable(model))
    P = weights(model).numel()
    for n in range(3):
        step(model, optimizer, n)
    states = [optimizer.state[p] for p in model.parameters()]
    wanted = [state[name].flatten() for name in ("exp_avg", "exp_avg_sq") for state in states]
    assert torch.equal(moments.snapshot(), torch.cat([*wanted, torch.full((4,), 3.0)]))
    assert moments.numel == 2 * P + 4
    with pytest.raises(ValueError, match="moments, got shape"):
        moments.set_(torch.zeros(P))


def test_an_optimizer_without_moments() -> None:
    model = network()
    moments = Moments(SGD()(model), Layout.trainable(model))
    both = WeightsAndMoments(Weights(moments.layout), moments)
    assert moments.numel == 0
    assert torch.equal(both.snapshot(), weights(model))
    assert not len(moments.moved_on(moments.snapshot(), moments.snapshot(), 3, 2.0))


class One(nn.Module):
    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))


def adam_after(gradients: list[float], change: Callable[[Moments], None] | None = None) -> tuple[float, float]:
    """m and v after these gradients, without correction, and after a change."""
    model = One()
    optimizer = Adam(lr=0.0)(model)
    for g in gradients:
        model.w.grad = torch.tensor([g], dtype=torch.float64)
        optimizer.step()
    moments = Moments(optimizer, Layout.trainable(model))
    if change is not None:
        change(moments)
    m, v, _ = moments.snapshot().tolist()
    return m, v


BOUND = 1.01 * 0.1**2 / (0.001 * (1 - 0.81 / 0.999))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30))
def test_the_inequality_holds_for_all_gradients(gradients: list[float]) -> None:
    """m^2 <= C v, so that setting the moments of a real run changes nothing."""
    m, v = adam_after(gradients)
    assert m**2 <= BOUND / 1.01 * v * (1 + 1e-9) + 1e-300
    assert adam_after(gradients, lambda moments: moments.set_(moments.snapshot())) == (m, v)


def test_the_inequality_is_restored() -> None:
    """A unit that has seen no gradient takes over another's m with half a weight, but not its v."""
    m, v = adam_after([0.0] * 5, lambda moments: moments.add_(torch.tensor([0.4, 0.0, 0.0], dtype=torch.float64)))
    assert (m, v) == pytest.approx((0.4, 0.16 / BOUND))
    m, v = adam_after([1.0] * 5, lambda moments: moments.add_(torch.tensor([0.0, -9.0, 0.0], dtype=torch.float64)))
    assert v == pytest.approx(m**2 / BOUND)


def test_squares_stay_positive() -> None:
    """Additions that arrive late may take more than there is."""
    model = One()
    moments = Moments(torch.optim.Adam(model.parameters(), amsgrad=True), Layout.trainable(model))
    moments.add_(torch.tensor([0.0, -2.0, -3.0, 0.0], dtype=torch.float64))
    assert not moments.snapshot().any()


def test_moments_that_follow_a_longer_step() -> None:
    """With equal gradient statistics in all blocks, an outer step of 3 blocks is as good as 3 blocks."""
    E, d, steps = torch.tensor([2.0, 5.0]), (0.9, 0.999), 4
    model = One()
    moments = Moments(Adam()(model), Layout.trainable(model))

    def blocks(count: float) -> Tensor:
        shares = torch.tensor([1 - each ** (steps * count) for each in d])
        return torch.cat([torch.lerp(torch.tensor([1.0, 4.0]), E, shares), torch.tensor([7.0 + steps * count])])

    before, after = blocks(0.0), blocks(1.0)
    for count in (0.4, 1.0, 3.0):
        assert torch.allclose(moments.moved_on(before, after, steps, count), blocks(count))


Made = Callable[[Iterator[nn.Parameter]], optim.Optimizer]
LINEAR: dict[
    str, tuple[Made, tuple[str, ...]]
] = {  # optimizer -> its decaying means of functions of the gradient, which are equal in all steps of a block
    "SGD": (lambda p: optim.SGD(p, lr=0.1, momentum=0.8), ("momentum_buffer",)),
    "Adam": (lambda p: optim.Adam(p), ("exp_avg", "exp_avg_sq", "step")),
}


@pytest.mark.parametrize("blocks", [0.5, 1, 3, 8])
@pytest.mark.parametrize("name", LINEAR)
def test_an_outer_step_of_many_blocks_is_as_good_as_many_blocks(name: str, blocks: float) -> None:
    """The gradient changes before the block; in it, and after it, it stays."""
    make, names = LINEAR[name]
    steps = 4

    def after(count: float) -> Moments:
        model = One()
        optimizer = make(model.parameters())
        for gradient in [1.0] * 30 + [0.1] * round(steps * count):
            model.w.grad = torch.full_like(model.w, gradient)
            optimizer.step()
        return Moments(optimizer, Layout.trainable(model))

    start, wanted = after(0), after(blocks)
    moved = start.moved_on(start.snapshot(), after(1).snapshot(), steps, blocks)
    (state,) = start.optimizer.state.values()
    order = [each for each in (*NAMES, STEPS) if isinstance(state.get(each), Tensor)]
    found = dict(zip(order, zip(moved.tolist(), wanted.snapshot().tolist(), strict=True), strict=True))
    assert set(names) <= found.keys()
    for each in names:
        assert found[each][0] == pytest.approx(found[each][1], rel=1e-6), each
