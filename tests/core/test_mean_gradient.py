"""Mean gradients with compression: the gradients as if alone, and flags to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from murmur.core.compression import COMPRESSIONS, CompressedGroup
from murmur.core.flat import Layout
from murmur.core.mean_gradient import MeanGradients
from murmur.core.source import SKIPPED_SAMPLES, Gradient
from murmur.core.weights import Weights
from murmur.core.world import Seat, World
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.task import Loss
from murmur.engine.trainer import Trainer
from murmur.strategies import Compressed, SyncSGD
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.world import VirtualWorld
from tasks import Point, Quadratic
from unscaled import Experiment

LEARNERS, ROUNDS, SIZES = 3, 24, (520, 300, 170, 10)


@dataclass
class Restarts:
    """Source of gradients that counts the restarts of its optimizer."""

    count: int = 0

    def restart(self) -> None:
        self.count += 1


@dataclass(frozen=True)
class Rounds:
    """Rounds of mean gradients; learner 1 is broken in one of them, and gives nothing in another."""

    form: str
    broken_at: int = 15

    def given(self, rank: int, k: int) -> Gradient:
        g = 1e-3 * torch.randn(sum(SIZES), generator=torch.Generator().manual_seed(100 * k + rank))
        present = [True, k % 4 == rank, k == 1 and rank == 1, False]
        for part, there in zip(g.split(SIZES), present, strict=True):
            part.mul_(float(there))
        broken = rank == 1 and k == self.broken_at
        samples = SKIPPED_SAMPLES if broken else 0.0 if rank == 1 and k == 7 else 1.0 + rank
        return Gradient(g, present, samples, 0.0, broken)

    async def __call__(self, seat: Seat) -> list[tuple[bool, list[bool], int]]:
        group, alone = (CompressedGroup(seat.group, COMPRESSIONS[self.form]) for _ in range(2))
        source: Any = Restarts()
        layout = Layout(nn.Parameter(torch.zeros(size)) for size in SIZES)
        means = MeanGradients(seat, Weights(layout), source)
        found = []
        for k in range(ROUNDS):
            given = self.given(seat.group.rank, k)

            async def draw(_: Callable[[float], None] | None, given: Gradient = given) -> Gradient:
                return given

            mean = await means.over(group, draw)
            wanted = await alone.mean(given.g, given.samples)
            for part, there in zip(wanted.split(SIZES), mean.present, strict=True):
                part.mul_(float(there))
            found.append((torch.equal(mean.g, wanted), list(mean.present), source.count))
        return found


@pytest.mark.parametrize("form", COMPRESSIONS)
@pytest.mark.parametrize(
    "world", [VirtualWorld, lambda n: ThreadWorld(n, timeout_seconds=10)], ids=["virtual", "threads"]
)
def test_flags_change_no_gradient_and_are_exact(world: Callable[[int], World], form: str) -> None:
    rounds = Rounds(form)
    given = [[rounds.given(rank, k) for rank in range(LEARNERS)] for k in range(ROUNDS)]
    for found in world(LEARNERS).run(rounds):
        for k, (as_alone, present, restarts) in enumerate(found):
            counted = [gradient.present for gradient in given[k] if gradient.samples > 0]
            assert as_alone
            assert present == [any(flags) for flags in zip(*counted, strict=True)], f"round {k}"
            assert restarts == (k >= rounds.broken_at)


class Two(Point):
    """A point and a tensor that few minibatches use."""

    def __init__(self) -> None:
        super().__init__(5)
        self.rare = nn.Parameter(torch.ones(3, dtype=torch.float64))


@dataclass(frozen=True)
class Rare(Quadratic):
    """Quadratic in which only minibatch 1 has a gradient of the rare tensor."""

    def model(self) -> Point:
        return Two()

    def minibatch(self, n: int) -> tuple[torch.Tensor, float, int]:  # type: ignore[override]
        return *super().minibatch(n), n

    def loss(self, model: nn.Module, minibatch: tuple[torch.Tensor, float, int]) -> Loss:  # type: ignore[override]
        assert isinstance(model, Two)
        loss = super().loss(model, minibatch[:2])
        return Loss(loss.total + (model.rare.sum() if minibatch[2] == 1 else 0.0), loss.samples)


@pytest.mark.parametrize("form", COMPRESSIONS)
def test_a_tensor_without_a_gradient_on_any_learner_is_left_alone(form: str) -> None:
    """Weight decay and momentum act on it in one step, as without compression."""

    def rare(strategy: Any) -> torch.Tensor:
        optimizer = SGD(0.1, momentum=0.5, weight_decay=0.05)
        experiment = Experiment(Rare(), strategy, Budget(minibatches=90), optimizer)
        model = Trainer(experiment, VirtualWorld(LEARNERS)).fit().model
        assert isinstance(model, Two)
        return model.rare.detach()

    assert torch.allclose(rare(Compressed(SyncSGD(), form)), rare(SyncSGD()), rtol=1e-3)
