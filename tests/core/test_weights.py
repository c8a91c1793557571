from __future__ import annotations

from contextlib import nullcontext
from threading import Thread

import pytest
import torch
from torch import nn

from murmur.core.flat import PIECE_NUMEL, Layout
from murmur.core.weights import Weights


def make(values: list[float]) -> tuple[nn.Linear, Weights]:
    model = nn.Linear(len(values), 1, bias=False)
    model.weight.data = torch.tensor([values])
    return model, Weights(Layout.trainable(model))


def test_a_gradient_keeps_the_weights_it_began_with() -> None:
    model, weights = make([1.0, 2.0])
    with weights.held():
        weights.add_(torch.tensor([10.0, 10.0]))
        assert model.weight.tolist() == [[1.0, 2.0]]  # phi
        assert weights.snapshot().tolist() == [11.0, 12.0]  # the live weights
        weights.add_(torch.tensor([1.0, 0.0]))
    weights.step(lambda: model.weight.data.mul_(2))
    assert weights.snapshot().tolist() == [24.0, 24.0]  # the step moved the live weights, not phi
    assert model.weight.tolist() == [[24.0, 24.0]]


def test_between_gradients_the_model_holds_the_live_weights() -> None:
    model, weights = make([1.0])
    weights.add_(torch.tensor([2.0]))
    assert model.weight.item() == 3.0


def test_set_replaces_what_is_ahead() -> None:
    model, weights = make([1.0])
    with weights.held():
        weights.add_(torch.tensor([5.0]))
        weights.set_(torch.tensor([7.0]))
    with weights.held():
        assert model.weight.item() == 7.0


def many(seed: int) -> torch.Tensor:
    return torch.randn(2 * PIECE_NUMEL + 50, generator=torch.Generator().manual_seed(seed))


class Uneven(nn.Module):
    """Tensors that end in the middle of pieces."""

    def __init__(self) -> None:
        super().__init__()
        parts = many(0).split([7, PIECE_NUMEL + 3, 1, PIECE_NUMEL + 39])
        self.parts = nn.ParameterList([nn.Parameter(part.clone()) for part in parts])


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("alpha", [0.5, 0.3])
def test_a_pull_has_the_bits_of_a_difference(held: bool, own: bool, alpha: float) -> None:
    """With a snapshot of the same weights, and with another vector; now, and when the model may change again."""
    model = Uneven()
    weights, theirs = Weights(Layout.trainable(model)), many(1)
    mine = weights.snapshot() if own else many(2)
    wanted = many(0).add_(theirs - mine, alpha=alpha)
    with weights.held() if held else nullcontext():
        weights.pull_(theirs, mine, alpha)
        assert torch.equal(weights.layout.gather(), many(0)) == held
        assert torch.equal(weights.snapshot(), wanted)
    weights.step(lambda: None)
    assert torch.equal(weights.layout.gather(), wanted)


def test_changes_of_held_weights_land_in_their_order() -> None:
    model, weights = make([1.0, 2.0])
    with weights.held():
        mine = weights.snapshot()
        weights.pull_(torch.tensor([3.0, 0.0]), mine, 0.5)  # waits
        weights.pull_(torch.tensor([0.0, 10.0]), mine, 0.5)  # not of the present weights any more
        assert model.weight.tolist() == [[1.0, 2.0]]
        assert weights.snapshot().tolist() == [1.5, 5.0]
        weights.add_(torch.tensor([1.0, 1.0]))
    assert weights.snapshot().tolist() == [2.5, 6.0]
    with weights.held():
        assert model.weight.tolist() == [[2.5, 6.0]]
        weights.pull_(torch.tensor([4.0, 6.0]), weights.snapshot(), 1.0)
        weights.set_(torch.tensor([7.0, 7.0]))  # what was before is lost
    with weights.held():
        assert model.weight.tolist() == [[7.0, 7.0]]


def test_weights_that_are_lent_keep_a_change_that_waits() -> None:
    model, weights = make([1.0])
    with weights.held():
        weights.pull_(torch.tensor([3.0]), weights.snapshot(), 0.5)
        with weights.lent(torch.tensor([9.0])):
            assert model.weight.item() == 9.0
        assert model.weight.item() == 1.0
    with weights.held():
        assert model.weight.item() == 2.0


def test_version_counts_changes() -> None:
    _, weights = make([1.0])
    weights.add_(torch.ones(1))
    weights.set_(torch.ones(1))
    weights.step(lambda: None)
    with weights.held() as version:
        assert version == 3


def test_concurrent_changes_all_land() -> None:
    model, weights = make([0.0] * 50)

    def add() -> None:
        for _ in range(500):
            weights.add_(torch.ones(50))

    def compute() -> None:
        for _ in range(200):
            with weights.held():
                before = model.weight.clone()
                torch.randn(20, 20) @ torch.randn(20, 20)
                assert torch.equal(before, model.weight)
            weights.step(lambda: model.weight.data.sub_(1.0))

    threads = [Thread(target=add), Thread(target=add), Thread(target=compute)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert weights.snapshot().tolist() == [1000.0 - 200.0] * 50


def test_misuse_is_refused() -> None:
    _, weights = make([1.0])
    with weights.held(), pytest.raises(RuntimeError, match="while a gradient is being computed"):
        weights.step(lambda: None)
    with pytest.raises(ValueError, match="a vector of 1 elements"):
        weights.add_(torch.zeros(2))


@pytest.mark.gpu
def test_streams_are_ordered() -> None:
    model = nn.Linear(1_000_000, 1, bias=False, device="cuda")
    model.weight.data.zero_()
    weights = Weights(Layout.trainable(model))
    one = torch.ones(1_000_000, device="cuda")

    def add(sign: float) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5000):
                weights.add_(one * sign)

    threads = [Thread(target=add, args=(s,)) for s in (1.0, 1.0, -1.0)]
    for thread in threads:
        thread.start()
    for _ in range(1000):
        weights.step(lambda: model.weight.data.add_(1.0))
    for thread in threads:
        thread.join()
    assert weights.snapshot().unique().tolist() == [5000.0 + 1000.0]
