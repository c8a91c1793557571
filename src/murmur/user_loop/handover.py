"""A strategy in a user's loop that goes on without lost learners, and hands its state to a loop that comes late.

A late loop in lock-step gets weights, the strategy's vectors, the state of the optimizer, buffers and position from a
live learner, and its frozen parameters. A counted loop can then go on where the others are. Groups of the optimizer
keep the settings that the late loop has given them.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine, Sequence
from typing import Any

import torch
from torch import Tensor

from murmur.core.buffers import is_dense, pack, unpack, write
from murmur.core.facts import Facts
from murmur.core.flat import Layout
from murmur.core.group import Group
from murmur.core.learner import Learner, Strategy
from murmur.core.membership import View
from murmur.elastic.elastic_group import ElasticGroup, OwnState
from murmur.elastic.regrouping import run_strategy
from murmur.engine.checkpoints.checkpoint import pack_optimizer, unpack_optimizer
from murmur.user_loop.consensus import Answers
from murmur.user_loop.source import LoopSource

BUFFER, FROZEN, FACTS = "buffer ", "frozen ", "facts"
PLAIN = (int, float, str, type(None))


def begun(
    strategy: Strategy, me: Learner, source: LoopSource, answers: Answers, view: View | None
) -> Coroutine[Any, Any, None]:
    """Begin a strategy; `view` is that of the moment when all learners had come."""
    nothing = Layout([])  # buffers are in the handover: their shapes may differ

    def entered(_: int) -> None:
        source.turns.begin(me.steps)
        source.stop.enter()

    return run_strategy(strategy, me, lambda: nothing, entered, view, own=handover(source, answers))


def outlives(strategy: Strategy, world: Group) -> bool:
    """Return True if a strategy goes on without a lost learner of a world."""
    return world.tolerates_loss and Facts.of(strategy).tolerates_loss


def present(me: Learner, world: Group) -> Sequence[int]:
    """Return the ranks in the world of the learners that hold the model now."""
    if isinstance(me.group, ElasticGroup):
        return me.group.present
    return range(world.size) if me.lock_step else sorted({*world.membership.view().live, world.rank})


def handover(source: LoopSource, answers: Answers) -> OwnState:
    """Return the two sides of a loop: as one of the members, and as one that comes late."""
    optimizer, model = source.local_optimizer.optimizer, source.buffers.model
    frozen = {FROZEN + name: p for name, p in model.named_parameters() if not p.requires_grad}

    def give() -> Tensor:
        tensors, plain = pack_optimizer(optimizer)
        if any(not isinstance(value, PLAIN) for value in plain.values()):
            tensors, plain = {}, {}  # state of a kind of its own: the optimizer of the late loop begins without any
        facts = {"optimizer": plain, "steps": source.counters.steps}
        text = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
        every = {name: x for name, x in model.named_buffers() if is_dense(x)} | answers.own_buffers()
        return pack({FACTS: text, **tensors, **frozen, **{BUFFER + name: x for name, x in every.items()}})

    def take(raw: Tensor) -> None:
        _, found = unpack(raw)
        facts = json.loads(bytes(found.pop(FACTS).tolist()))
        source.local_optimizer.restart()
        unpack_optimizer(optimizer, found, facts["optimizer"])
        source.counters.steps = int(facts["steps"])
        for name, p in frozen.items():
            write(p, found[name].to(p.device))
        source.buffers.put({k.removeprefix(BUFFER): x for k, x in found.items() if k.startswith(BUFFER)})

    return OwnState(give, take)
