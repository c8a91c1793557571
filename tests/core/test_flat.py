from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from murmur.core.flat import Layout

SHAPES = st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=5)


@given(SHAPES, st.integers(0, 2**31))
def test_gather_and_scatter_are_inverse(shapes: list[tuple[int, ...]], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=draw) for shape in shapes]
    layout = Layout(tensors)
    before = [t.clone() for t in tensors]
    flat = layout.gather()
    assert flat.shape == (sum(t.numel() for t in tensors),)
    for t in tensors:
        t.zero_()
    layout.scatter(flat)
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))


def test_tied_tensors_stand_once_and_frozen_ones_not_at_all() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 2))
    model[1].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    assert Layout.trainable(model).numel == 9 + 6


def test_a_tensor_given_twice_stands_once() -> None:
    tensor = torch.ones(3)
    assert Layout([tensor, torch.zeros(2), tensor]).numel == 5


def test_mixed_types_survive_exactly() -> None:
    tensors = [torch.randn(5).bfloat16(), torch.randn(5).double(), torch.randn(2, 3).t()]
    layout = Layout(tensors)
    assert layout.dtype == torch.float64
    before = [t.clone() for t in tensors]
    layout.scatter(layout.gather())
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))


def test_vectors_are_copies() -> None:
    tensor = torch.ones(3)
    flat = Layout([tensor]).gather()
    flat.zero_()
    assert tensor.tolist() == [1, 1, 1]


@pytest.mark.parametrize("alpha", [1.0, 1 / 3, -0.7])
def test_adding_in_place_has_the_bits_of_adding_to_the_vector(alpha: float) -> None:
    model = nn.Sequential(nn.Linear(37, 19), nn.Linear(19, 5))
    layout = Layout.trainable(model)
    delta = torch.randn(layout.numel)
    wanted = layout.gather().add_(delta, alpha=alpha)
    layout.add_(delta, alpha)
    assert layout.alike
    assert torch.equal(layout.gather(), wanted)
    assert not Layout([torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)]).alike


def test_absent_gradients_stay_absent() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    layout = Layout.trainable(model)
    model[0](torch.ones(1, 2)).sum().backward()
    g, present = layout.gather_gradients()
    assert present == [True, True, False, False]
    assert g[6:].tolist() == [0.0] * 6
    layout.hand_gradients(g, present)
    assert [p.grad is None for p in model.parameters()] == [False, False, True, True]


def test_errors() -> None:
    with pytest.raises(ValueError, match="no trainable parameter"):
        Layout.trainable(nn.ReLU())
    with pytest.raises(ValueError, match="a vector of 3 elements"):
        Layout([torch.zeros(3)]).scatter(torch.zeros(4))
