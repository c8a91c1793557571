"""Gradients averaged behind the backward pass equal those averaged after it."""

from __future__ import annotations

import gc
from itertools import pairwise
from weakref import ref

import pytest
import torch
from torch import nn

from murmur.core.flat import Layout
from murmur.core.group import Group, weighted_mean
from murmur.core.overlapped_mean import MeanBehindBackward
from murmur.core.world import Seat
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.world import VirtualWorld
from pool import Pool, PooledWorld

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
