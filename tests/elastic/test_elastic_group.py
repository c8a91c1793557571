"""Loss of a member after some members have finished a collective and others have not."""

from __future__ import annotations

from collections.abc import Awaitable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from murmur.core.assignment import Assignment
from murmur.core.flat import Layout
from murmur.core.group import Group, PeerLost
from murmur.core.source import Computed
from murmur.core.world import Seat
from murmur.elastic.elastic_group import LOST, ElasticGroup, LearnerState, transfer_state
from murmur.elastic.rendezvous import LeftBehind, Named
from murmur.worlds.virtual.cluster import Cluster, Kill
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named

DIES = 3


@pytest.mark.parametrize("ended", [{0}, {1}, {0, 2}, {1, 2}, {0, 1, 2}, set()], ids=named)
def test_a_result_is_broadcast_and_not_computed_twice(ended: set[int]) -> None:
    """The first collective ends for some before a learner is lost; the remaining learners hold the second."""

    async def program(seat: Seat) -> tuple[list[float], list[float], int, int, Computed]:
        rank = seat.group.rank
        if rank == DIES:
            await seat.group.recv(0, "until it is killed")
        turns = SimpleNamespace(assignment=Assignment((0, 1, 2, DIES)))
        local = SimpleNamespace(steps=0, weights=None, source=SimpleNamespace(turns=turns))
        left = ElasticGroup(seat.group, local, {}, lambda: Layout([]))
        tried = {"first": 0, "second": 0}

        async def held(name: str, whole: bool, group: Group) -> Tensor:
            tried[name] += 1
            if group is seat.group:
                await seat.sleep(1.0)  # until after the loss
                if not whole:
                    raise PeerLost(f"learner {DIES} is lost")
                left._said = {r: Computed(1 + r, 10**r) for r in range(4)}
                return torch.full((2,), 40.0)
            left._said = {r: Computed(1 + r, 10**r) for r in range(3)}
            return await group.start_sum(torch.ones(2))

        def first(group: Group) -> Awaitable[Tensor]:
            return held("first", rank in ended, group)

        def second(group: Group) -> Awaitable[Tensor]:
            return held("second", False, group)

        found = await left._hold(first, torch.zeros(2), ends_round=True)
        regrouped, computed = left.regrouped, left.computed
        again = await left._hold(second, torch.zeros(2))
        assert (left.live, left.regrouped, left.computed) == ((0, 1, 2), 1, computed)
        return found.tolist(), again.tolist(), tried["first"], regrouped, computed

    survivors = VirtualWorld(Cluster(learners=4, faults=(Kill(DIES, 0.5),), lease_seconds=1.0)).run(program)
    expected = [40.0, 40.0] if ended else [3.0, 3.0]
    for rank, (handed, summed, times, regrouped, computed) in enumerate(survivors):
        assert regrouped == (0 if ended else 1)  # the same for all, although some have formed the new group already
        assert computed == (Computed(10, 1111) if ended else Computed(6, 111))  # with the lost one, or it is done again
        assert handed == expected
        assert summed == [3.0, 3.0]
        assert times == (1 if ended or rank in ended else 2)
    assert len(survivors) == 3


@pytest.mark.parametrize("others", [{}, {1: 2}], ids=["alone", "others go on"])
def test_the_last_learner_goes_on_alone_unless_others_do(others: dict[int, int]) -> None:
    async def program(seat: Seat) -> tuple[int, tuple[int, ...], list[float]]:
        turns = SimpleNamespace(assignment=Assignment((0, 1)))
        local = SimpleNamespace(steps=0, weights=None, source=SimpleNamespace(turns=turns))
        group = ElasticGroup(seat.group, local, {}, lambda: Layout([]))
        if seat.group.rank == 1:
            return 0, (), []

        async def named(_: int) -> Named:
            return Named({0: 1, **others}, "again")

        group._rendezvous.request_to_join = named  # type: ignore[method-assign]
        await group._go_on_alone()
        total = (await group.start_sum(torch.ones(2))).tolist()
        return group.regrouped, group.live, total

    world = VirtualWorld(Cluster(learners=2))
    if others:
        with pytest.raises(LeftBehind):
            world.run(program)
        return
    assert world.run(program)[0] == (1, (0,), [1.0, 1.0])


ROOT, ENTERING = 1, 2
ASSIGNMENT = Assignment((0, 1, 2), moved={0: 4})


def state(rank: int) -> LearnerState:
    """State of one learner: its vectors hold its rank; learner 0 has no outer vector that the root has."""
    outer = {"momentum": torch.full((3,), 10.0 + rank), "scale": torch.full((1,), 20.0 + rank, dtype=torch.float64)}
    if rank == ROOT:
        outer["reference"] = torch.full((2,), 30.0 + rank)
    kept = {} if rank == ENTERING else outer
    buffers = Layout([torch.full((2,), 40.0 + rank)])
    assignment = ASSIGNMENT if rank == ROOT else Assignment((0, 1))
    return LearnerState(
        5 + rank, 7 + rank, 2, {LOST: Computed(rank, -rank)}, assignment, torch.full((4,), float(rank)), kept, buffers
    )


async def transferred(seat: Seat) -> tuple[LearnerState, LearnerState]:
    mine = state(seat.group.rank)
    return mine, await transfer_state(seat.group, mine, ROOT, entering=seat.group.rank == ENTERING)


def test_a_learner_that_enters_takes_over_the_state_of_the_root() -> None:
    results = VirtualWorld(Cluster(3)).run(transferred)
    for before, after in results[:ENTERING]:
        assert after is before
    root, entered = results[ROOT][0], results[ENTERING][1]
    assert (entered.steps, entered.completed, entered.size) == (root.steps, root.completed, root.size)
    assert entered.computed == {LOST: Computed(ROOT, -ROOT)}
    assert entered.assignment == ASSIGNMENT
    assert torch.equal(entered.weights, root.weights)
    assert set(entered.outer) == set(root.outer)
    for name, x in root.outer.items():
        assert entered.outer[name].dtype == x.dtype
        assert torch.equal(entered.outer[name], x)
    assert torch.equal(entered.buffers.gather(), torch.full((2,), 40.0 + ROOT))
