"""Mean gradients with compression: the gradients as if alone, and flags to the bit."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from weakref import ref

import pytest
import torch
from torch import nn

from murmur.core.flat import Layout
from murmur.core.group import Group, weighted_mean
from murmur.core.local_steps import LocalSteps
from murmur.core.mean_gradient import MeanBehindBackward
from murmur.core.source import SKIPPED_SAMPLES, Gradient
from murmur.core.weights import Weights
from murmur.core.world import Seat, World
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.task import Loss
from murmur.engine.trainer import Trainer
from murmur.strategies import Compressed, SyncSGD
from murmur.strategies.compressed import COMPRESSIONS, CompressedGroup
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.pool import Pool, PooledWorld
from tests.support.tasks import Point, Quadratic
from tests.support.unscaled import Experiment

LEARNERS, ROUNDS, SIZES = 3, 24, (520, 300, 170, 10)


@dataclass
class Restarts:
    """Source of gradients that counts the restarts of its optimizer."""

    count: int = 0

    @property
    def local_optimizer(self) -> Restarts:
        return self

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
        means = LocalSteps(seat, seat.group, Weights(layout), source)
        found = []
        for k in range(ROUNDS):
            given = self.given(seat.group.rank, k)

            async def draw(_: Callable[[float], None] | None, given: Gradient = given) -> Gradient:
                return given

            mean = await means.averaged(group, draw)
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


WEIGHTS = [3.0, 0.0, 5.0]


class Skips(nn.Module):
    """Model whose last layer takes part for some learners only, and the first for none of them."""

    def __init__(self, learner: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.never = nn.Linear(3, 3)
        self.layers = nn.Sequential(*(nn.Linear(40, 40) for _ in range(6)))
        self.last = nn.Linear(40, 1)
        self.learner = learner

    def forward(self) -> torch.Tensor:
        x = self.layers(torch.full((2, 40), 0.1 * (self.learner + 1)))
        return (self.last(x) if self.learner == 2 else x).square().sum()


def gradient(learner: int) -> tuple[torch.Tensor, list[bool]]:
    model = Skips(learner)
    model().backward()
    return Layout.trainable(model).gather_gradients()


async def behind(seat: Seat) -> tuple[list[float], list[bool], float]:
    rank = seat.group.rank
    with seat.exclusive():
        model = Skips(rank)
    mean = MeanBehindBackward(Layout.trainable(model), seat.group, bucket_bytes=7000)
    for _ in range(2):  # buffers are used again
        mean.start(WEIGHTS[rank])
        if WEIGHTS[rank] > 0:
            model().backward()
        g, present = await mean.finish()
        model.zero_grad()
    return g.tolist(), present, seat.group.total_weight


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["virtual", "threads", "torch"])
def test_behind_equals_after(kind: str, pool: Pool) -> None:
    worlds = {"virtual": VirtualWorld, "threads": ThreadWorld, "torch": lambda size: PooledWorld(pool, size)}
    alone = [gradient(learner) for learner in range(3)]
    wanted = weighted_mean([g for g, _ in alone], WEIGHTS)
    flags = [any(p[i] for (_, p), w in zip(alone, WEIGHTS, strict=True) if w > 0) for i in range(len(alone[0][1]))]
    for g, present, total in worlds[kind](3).run(behind):
        assert torch.allclose(torch.tensor(g), wanted, rtol=1e-5, atol=1e-6)
        assert present == flags
        assert present[:2] == [False, False]
        assert total == sum(WEIGHTS)


def test_buckets_cover_the_buffer_once_from_its_end() -> None:
    model = Skips(0)

    async def plan(seat: Seat) -> list[tuple[int, int]]:
        return MeanBehindBackward(Layout.trainable(model), seat.group, bucket_bytes=7000)._buckets

    buckets = VirtualWorld(1).run(plan)[0]
    assert len(buckets) > 3
    assert buckets[-1][0] == 0
    assert all(a[0] == b[1] for a, b in pairwise(buckets))


def test_two_gradients_in_one_backward_are_refused() -> None:
    async def twice(seat: Seat) -> None:
        model = Skips(2)
        mean = MeanBehindBackward(Layout.trainable(model), seat.group)
        mean.start(1.0)
        model().backward()
        model().backward()

    with pytest.raises(RuntimeError, match="two gradients in one backward pass"):
        VirtualWorld(1).run(twice)


def test_a_model_that_stays_keeps_no_mean_of_an_ended_run() -> None:
    """Hooks that hold the mean would keep its group, with its connections, open as long as the process lives."""

    async def made(seat: Seat) -> tuple[nn.Module, ref[MeanBehindBackward], ref[Group]]:
        model = Skips(0)
        mean = MeanBehindBackward(Layout.trainable(model), seat.group)
        mean.start(1.0)
        model().backward()
        await mean.finish()
        return model, ref(mean), ref(seat.group)

    model, *kept = VirtualWorld(1).run(made)[0]
    gc.collect()
    assert [each() for each in kept] == [None, None]
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    model().backward()
