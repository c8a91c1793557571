"""Parameters of any strides: one learner is the plain loop to the bit, several agree; shared memory is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import murmur
from murmur.core.flat import Layout
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import ADPSGD, BMUF, KAVG, DelayByOne, SyncSGD
from murmur.worlds.threads import ThreadWorld
from tests.support.named import named
from tests.support.user_loops import Words

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p, fused: torch.optim.SGD(p, 0.1, momentum=0.9, fused=fused),
    "Adam": lambda p, fused: torch.optim.Adam(p, 0.01, fused=fused),
    "AdamW": lambda p, fused: torch.optim.AdamW(p, 0.01, amsgrad=True, fused=fused),
    "Adagrad": lambda p, fused: torch.optim.Adagrad(p, 0.01, fused=fused),
}


class Strided(nn.Module):
    """Convolutions in channels last, a transposed weight, a tied one, one with gaps, and a narrow one.

    Without gaps if PyTorch is to be right: its fused optimizers read past them.
    """

    def __init__(self, seed: int, gaps: int = 2) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv1d(4, 2, 1)
        self.turned = nn.Parameter(torch.empty(3, 8).t())
        self.tied = nn.Linear(3, 8, bias=False)
        self.tied.weight = self.turned
        self.gaps = nn.Parameter(torch.empty(3, 2 * gaps)[:, ::gaps])
        self.narrow = nn.Parameter(torch.empty(3, dtype=torch.bfloat16))
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=draw) / 3)
        self.first.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(torch.relu(self.first(x)).flatten(2)).mean(2)
        return (h @ self.gaps.t() + self.narrow) @ self.turned.t() @ self.tied.weight


def loss_of(model: nn.Module, n: int) -> Tensor:
    return model(torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(n))).square().mean()


def joined(
    strategy: Strategy, make: Callable[..., torch.optim.Optimizer], fused: bool, size: int, gaps: int
) -> list[Any]:
    def body(seat: Seat) -> tuple[Tensor, list[tuple[int, ...]]]:
        model = Strided(seat.group.rank, gaps)
        with murmur.join(strategy, model, make(model.parameters(), fused), seat=seat) as me:
            for n in range(6):
                loss_of(model, size * n + me.rank).backward()
                me.step()
        return Layout.trainable(model).gather(), [p.stride() for p in model.parameters()]

    return ThreadWorld(size, 20.0).run(Words(body))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), ADPSGD()], ids=named)
def test_one_learner_is_the_plain_loop_to_the_bit(strategy: Strategy, optimizer: str, fused: bool) -> None:
    make, model = OPTIMIZERS[optimizer], Strided(0)
    plain = make(model.parameters(), fused)
    for n in range(6):
        loss_of(model, n).backward()
        plain.step()
        plain.zero_grad()
    ((end, strides),) = joined(strategy, make, fused, 1, 2)
    assert torch.equal(end, Layout.trainable(model).gather())
    assert strides == [p.stride() for p in model.parameters()]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), DelayByOne(), BMUF(3)], ids=named)
def test_learners_with_strides_are_those_without(strategy: Strategy, fused: bool) -> None:
    """The weights of contiguous models with the same numbers and gradients."""

    def contiguous(parameters: Any, fused: bool) -> torch.optim.Optimizer:
        kept = list(parameters)
        for p in kept:
            p.data = p.data.contiguous()
        return OPTIMIZERS["SGD"](kept, fused)

    found, wanted = (joined(strategy, make, fused, 2, 1) for make in (OPTIMIZERS["SGD"], contiguous))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.allclose(found[0][0], wanted[0][0], atol=1e-5)


def shares(kind: str) -> nn.Module:
    model = nn.Linear(4, 4)
    if kind == "a part":
        model.other = nn.Parameter(model.weight.data[:2])
    elif kind == "a transpose":
        model.other = nn.Parameter(model.weight.data.t())
    elif kind == "the whole":
        model.other = nn.Parameter(model.weight.data)
    elif kind == "the middle":
        model.other = nn.Parameter(model.weight.data.view(-1)[5:7])
    else:
        model.other = nn.Parameter(torch.zeros(1, 3).expand(2, 3))
    return model


@pytest.mark.parametrize("kind", ["a part", "a transpose", "the whole", "the middle", "itself"])
def test_parameters_that_share_memory_are_refused_by_name(kind: str) -> None:
    model = shares(kind)
    said = "elements of other share memory" if kind == "itself" else "views of the same memory, but not one parameter"
    with pytest.raises(ValueError, match=said) as caught:
        murmur.join(SyncSGD(), model, torch.optim.SGD(model.parameters(), 0.1))
    assert "other" in str(caught.value)
    assert (kind == "itself") != ("weight" in str(caught.value))


def test_lazy_modules_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"1\.weight has no shape yet"):
        murmur.join(SyncSGD(), model, torch.optim.SGD(model.parameters(), 0.1))


def test_parts_of_one_memory_that_do_not_overlap_are_taken() -> None:
    """Recurrent networks on a GPU have all weights in one memory."""
    whole = torch.zeros(12)
    model = nn.ParameterList([nn.Parameter(whole[:6].view(2, 3)), nn.Parameter(whole[6:].view(3, 2))])
    assert Layout.trainable(model).numel == 12


class Frozen(nn.Module):
    """Frozen tensors of several types and strides beside a small trained one; learners begin with different ones."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.trained = nn.Linear(2, 2)
        values = torch.arange(6.0).view(2, 3) + rank
        frozen = {
            "bytes": values.to(torch.uint8),
            "narrow": values.to(torch.bfloat16),
            "wide": values.double() / 3,
            "turned": values.t(),
            "expanded": values[:, :1].expand(2, 4),
            "equal": torch.ones(3),
            "complex": values.to(torch.complex64) * 1j,
            "of trained": self.trained.weight.detach()[:1],
        }
        self.frozen = nn.ParameterDict({name: nn.Parameter(x, requires_grad=False) for name, x in frozen.items()})


def test_frozen_tensors_of_all_kinds_are_learner_0s() -> None:
    def body(seat: Seat) -> list[Tensor]:
        model = Frozen(seat.group.rank)
        with torch.no_grad():
            model.trained.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]) + seat.group.rank)
        with murmur.join(KAVG(2), model, torch.optim.SGD(model.trained.parameters(), 0.0), seat=seat) as me:
            model.trained(torch.ones(1, 2)).sum().backward()
            me.step()
        assert model.frozen["of trained"].tolist() == model.trained.weight[:1].tolist() == [[1.0, 2.0]]
        return [p.detach() for name, p in model.frozen.items() if name != "of trained"]

    for end in ThreadWorld(2, 20.0).run(Words(body)):
        wanted = [p for name, p in Frozen(0).frozen.items() if name != "of trained"]
        assert all(torch.equal(x, y) for x, y in zip(end, wanted, strict=True))  # type: ignore[call-overload]
