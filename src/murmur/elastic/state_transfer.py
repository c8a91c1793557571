"""What a learner that joins others between two of their rounds must be told, as a handful of broadcasts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from murmur.core.assignment import Assignment
from murmur.core.flat import Layout
from murmur.core.group import Group


@dataclass(frozen=True)
class LearnerState:
    """A learner between two rounds.

    Attributes:
        steps: turns that are over.
        completed: collectives that it has taken part in.
        size: one more than the highest rank there has ever been.
        deals: whose each minibatch is.
        weights: its model w (P,).
        outer: the strategy's own vectors.
        buffers: tensors of the model that are no weights; they are set where they are.
    """

    steps: int
    completed: int
    size: int
    assignment: Assignment
    weights: Tensor
    outer: Mapping[str, Tensor]
    buffers: Layout


async def transfer_state(group: Group, mine: LearnerState, root: int, entering: bool) -> LearnerState:
    """The state of member `root`, to those that enter; the others keep theirs, which is the same. All members call it.

    Args:
        group: those that were there and those that enter.
        mine: this learner's own state; of one that enters only shapes of weights and buffers matter.
        root: a member that was there.
        entering: whether this learner takes the state over.
    """
    facts = {
        "steps": mine.steps,
        "completed": mine.completed,
        "size": mine.size,
        "deals": asdict(mine.assignment),
        "outer": {name: [x.numel(), str(x.dtype).removeprefix("torch.")] for name, x in mine.outer.items()},
    }
    raw = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
    length = int(await group.broadcast(torch.tensor([float(raw.numel())], dtype=torch.float64), root))
    # Of the facts only root's count: another member's outer vectors may be fewer (a leader's own).
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
    assignment = told["deals"]
    moved = {int(position): number for position, number in assignment["moved"].items()}
    dealt = Assignment(**{**assignment, "to": tuple(assignment["to"]), "moved": moved})
    counts = {name: told[name] for name in ("steps", "completed", "size")}
    return replace(mine, **counts, assignment=dealt, weights=weights, outer=outer)
