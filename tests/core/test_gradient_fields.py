"""Gradients that stay in the .grad fields until they are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from murmur.core.flat import Layout
from murmur.core.gradient_fields import SMALL_NUMEL, FinitenessOfFields, GradientInFields


def tensors(sizes: tuple[int, ...] = (3, SMALL_NUMEL, 2)) -> Layout:
    made = [torch.zeros(size, requires_grad=True) for size in sizes]
    for t in made:
        t.grad = torch.randn(t.shape, generator=torch.Generator().manual_seed(t.numel()))
    return Layout(made)


def gradient(layout: Layout) -> GradientInFields:
    g = GradientInFields.over(layout, torch.full((layout.numel,), 7.0))
    g.begin()
    return g


@pytest.mark.parametrize(
    "use",
    [
        lambda g: g.clone(),
        lambda g: g * 1.0,
        lambda g: torch.cat([g, torch.zeros(0)]),
        lambda g: torch.stack((g,))[0],
        lambda g: torch.add(input=g, other=0.0),
        lambda g: g.numpy(),
        lambda g: g.add_(0.0),
        lambda g: torch.empty_like(g).copy_(g),
    ],
)
def test_any_operation_reads_the_fields(use: Callable[[Tensor], Tensor]) -> None:
    layout = tensors()
    g, (wanted, _) = gradient(layout), layout.gather_gradients()
    assert g.unread
    found = torch.as_tensor(use(g))
    assert not g.unread
    assert type(found) is Tensor
    assert torch.equal(found, wanted)


def test_absent_fields_are_zeros() -> None:
    layout = tensors((3, 2))
    layout.tensors[1].grad = None
    assert gradient(layout)[3:].tolist() == [0.0, 0.0]


def test_an_end_keeps_a_gradient_without_a_step_only() -> None:
    layout = tensors((2, 2))
    wanted, _ = layout.gather_gradients()
    kept, spent = gradient(layout), gradient(layout)
    spent.applied = True
    assert spent.unread
    kept.end()
    spent.end()
    layout.clear_gradients()
    assert torch.equal(kept.clone(), wanted)
    spent.end()
    with pytest.raises(RuntimeError, match=r"copy it \(g.clone\(\)\) before the next one"):
        spent.clone()
    layout.tensors[0].grad = torch.ones(2)
    spent.begin()
    assert spent.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_a_change_in_place_is_kept() -> None:
    g = gradient(tensors((2,)))
    g.fill_(3.0)
    g.end()
    assert g.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_number_that_is_not_finite_is_found(place: int, value: float) -> None:
    layout = tensors()
    finite = FinitenessOfFields(layout)
    assert finite.holds()
    field = layout.tensors[place].grad
    assert field is not None
    field[-1] = value
    assert not finite.holds()
    layout.tensors[place].grad = None
    assert finite.holds()


@pytest.mark.parametrize("sizes", [(4,), (SMALL_NUMEL,), (SMALL_NUMEL, 4)])
def test_finite_numbers_with_an_infinite_sum_are_finite(sizes: tuple[int, ...]) -> None:
    layout = tensors(sizes)
    for t in layout.tensors:
        assert t.grad is not None
        t.grad.fill_(torch.finfo(torch.float32).max)
    assert FinitenessOfFields(layout).holds()
