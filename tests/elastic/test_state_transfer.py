"""State of a present learner taken over by one that enters: weights, outer vectors, buffers and counts."""

from __future__ import annotations

import torch

from murmur.core.assignment import Assignment
from murmur.core.flat import Layout
from murmur.core.source import Computed
from murmur.core.world import Seat
from murmur.elastic.state_transfer import LOST, LearnerState, transfer_state
from murmur.worlds.virtual.cluster import Cluster
from murmur.worlds.virtual.world import VirtualWorld

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
