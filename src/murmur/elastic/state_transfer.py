"""State transfer to a learner that joins others between two of their rounds, as a few broadcasts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from murmur.core.assignment import Assignment
from murmur.core.flat import Layout
from murmur.core.group import Group
from murmur.core.source import Computed

LOST = -1  # key of all lost members together


@dataclass(frozen=True)
class LearnerState:
    """State of a learner between two rounds.

    Attributes:
        steps: Turns completed.
        completed: Collectives that it has taken part in.
        size: One more than the highest rank so far.
        computed: Minibatches computed by each member until its last mean, by rank, and by lost members (`LOST`).
        assignment: Assignment of minibatches to learners.
        weights: Its weights w, shape (P,).
        outer: The strategy's vectors.
        buffers: Tensors of the model that are not weights; they are set in place.
    """

    steps: int
    completed: int
    size: int
    computed: Mapping[int, Computed]
    assignment: Assignment
    weights: Tensor
    outer: Mapping[str, Tensor]
    buffers: Layout


async def transfer_state(group: Group, mine: LearnerState, root: int, entering: bool) -> LearnerState:
    """Send the state of member `root` to those that enter; the others keep theirs, which is the same. All call it.

    Args:
        group: Present members and those that enter.
        mine: This learner's own state; for one that enters, only the shapes of weights and buffers matter.
        root: A present member.
        entering: True if this learner takes the state over.
    """
    facts = {
        "steps": mine.steps,
        "completed": mine.completed,
        "size": mine.size,
        "computed": [(rank, share.count, share.fingerprint) for rank, share in mine.computed.items()],
        "assignment": asdict(mine.assignment),
        "outer": {name: [x.numel(), str(x.dtype).removeprefix("torch.")] for name, x in mine.outer.items()},
    }
    raw = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
    length = int(await group.broadcast(torch.tensor([float(raw.numel())], dtype=torch.float64), root))
    # Only root's facts count: another member may have fewer outer vectors (a leader has some of its own).
    raw = await group.broadcast(raw if group.rank == root else torch.zeros(length, dtype=torch.uint8), root)
    told = json.loads(bytes(raw.tolist()))
    weights = await group.broadcast(mine.weights, root)
    outer = {}
    for name, (numel, dtype) in told["outer"].items():
        x = mine.outer[name] if group.rank == root else weights.new_zeros(numel, dtype=getattr(torch, dtype))
        outer[name] = await group.broadcast(x, root)
    if mine.buffers.tensors:
        buffers = await group.broadcast(mine.buffers.gather(), root)
    if not entering:
        return mine
    if mine.buffers.tensors:
        mine.buffers.scatter(buffers)
    assignment = told["assignment"]
    moved = {int(position): number for position, number in assignment["moved"].items()}
    received = Assignment(**{**assignment, "to": tuple(assignment["to"]), "moved": moved})
    counts = {name: told[name] for name in ("steps", "completed", "size")}
    computed = {rank: Computed(*share) for rank, *share in told["computed"]}
    return replace(mine, **counts, computed=computed, assignment=received, weights=weights, outer=outer)
