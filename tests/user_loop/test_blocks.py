"""Several blocks of `murmur.join` in one launch, as pre-training and fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import chain, pairwise

import pytest
import torch
from torch import Tensor

import murmur
from murmur.core.learner import Strategy
from murmur.core.torch_private import TCPStore
from murmur.core.world import Seat
from murmur.strategies import (
    ADPSGD,
    ASGD,
    DecoupledDiLoCo,
    DiLoCo,
    GossipPGA,
    NoLoCo,
    StreamingDiLoCo,
    SuperLearners,
    SyncSGD,
)
from murmur.strategies.kavg import KAVG
from murmur.user_loop.joined import Plan
from murmur.worlds.process.environment import Place
from murmur.worlds.process.listener import listen
from murmur.worlds.process.torch_store import store_of_next_block
from murmur.worlds.threads import ThreadWorld
from tests.support.named import named
from tests.support.pool import Pool
from tests.support.user_loops import Words, loss_of, net, optimizer_of

BLOCKS, STEPS = 3, 4
LOCK_STEP = [SyncSGD(), KAVG(3), GossipPGA(2), NoLoCo(2), DiLoCo(2), StreamingDiLoCo(4, 2, 1)]
OTHERS = [ADPSGD(), ASGD(), DecoupledDiLoCo(2, 2), SuperLearners(ADPSGD(), 2)]
PLAN = Plan(timeout_seconds=20.0)


def trained(strategy: Strategy, begun: Tensor | None, block: int, seat: Seat | Place) -> Tensor:
    """Return the parameters after a block of steps; learners begin with their own, which the first one's replace."""
    rank = seat.rank if isinstance(seat, Place) else seat.group.rank
    model = net(10 * block + rank)
    if begun is not None:
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(begun.clone(), model.parameters())
    with murmur.join(strategy, model, optimizer_of(model), PLAN, seat) as me:
        for n in range(STEPS):
            loss_of(model, 100 * block + 2 * n + me.rank).backward()
            me.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def blocks(seat: Seat | Place, strategy: Strategy) -> list[Tensor]:
    """Return the parameters after each of several blocks at one seat or place, each from the end of the one before."""
    ends: list[Tensor] = []
    for block in range(BLOCKS):
        ends.append(trained(strategy, ends[-1] if ends else None, block, seat))
    return ends


def separate(strategy: Strategy) -> list[Tensor]:
    """Return the same with a world of its own for each block."""
    ends: list[Tensor] = []
    for block in range(BLOCKS):
        begun = ends[-1] if ends else None
        found = ThreadWorld(2, 20.0).run(
            Words(lambda seat, begun=begun, block=block: trained(strategy, begun, block, seat))
        )
        ends.append(found[0])  # type: ignore[arg-type]
    return ends


def check(strategy: Strategy, learners: list[list[Tensor]]) -> None:
    for ends in zip(*learners, strict=True):
        assert all(torch.equal(end, ends[0]) for end in ends)
    first = learners[0]
    assert all(not torch.equal(a, b) for a, b in pairwise(first))
    if strategy in LOCK_STEP:
        for end, expected in zip(first, separate(strategy), strict=True):
            assert torch.equal(end, expected)


@pytest.mark.parametrize("strategy", [*LOCK_STEP, *OTHERS], ids=named)
def test_blocks_at_one_seat_are_those_of_separate_worlds(strategy: Strategy) -> None:
    check(strategy, ThreadWorld(2, 20.0).run(Words(lambda seat: blocks(seat, strategy))))  # type: ignore[arg-type]


STORES = ("murmur", "torchrun", "learner 0")


def at_store(place: Place, store: str, port: int, strategy: Strategy) -> list[Tensor]:
    return blocks(replace(place, store=store, port=port or place.port), strategy)  # type: ignore[arg-type]


@pytest.mark.processes
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(3), GossipPGA(2), ADPSGD()], ids=named)
def test_blocks_of_a_launch(strategy: Strategy, store: str, pool: Pool) -> None:
    port, opened = 0, None
    if store == "torchrun":
        opened = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))
        port = opened.port
    elif store == "learner 0":
        with listen() as free:
            port = free.getsockname()[1]
    check(strategy, pool.call(at_store, 2, store, port, strategy))
    del opened


def numbers(place: Place, times: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the number of each block of one process, and how many processes have been in it so far."""
    found = []
    for _ in range(times[place.rank]):
        with store_of_next_block(replace(place, rank=0), 20.0) as (store, number):
            found.append((number, store.add("processes", 1)))
    return found


@pytest.mark.processes
def test_a_process_that_was_started_again_comes_late_to_the_first_block(pool: Pool) -> None:
    found = pool.call(numbers, 2, (2, 3))
    assert [[number for number, _ in process] for process in found] == [[0, 1], [0, 1, 2]]
    assert sorted(chain.from_iterable(found)) == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1)]
