"""The end of a user loop: all learners take over the consensus of the strategy, weights and buffers.

Buffers of learners that gave no gradients do not count: their running statistics are those of the start. Integer
buffers become the rounded mean, which leaves equal values unchanged.
"""

from __future__ import annotations

import torch
from torch import Tensor

from murmur.core.group import Group
from murmur.core.learner import Learner
from murmur.user_loop.source import LoopSource


async def take_over(me: Learner, world: Group, source: LoopSource) -> None:
    """Set the model to the mean of all learners' weights and buffers; a leader sends it to its members.

    Args:
        me: Learner whose strategy has ended.
        world: Group of all learners.
        source: Source of its model.
    """
    if me.follows:
        found = [(await world.recv(None, f"end {kind}")).x for kind in range(3)]
    else:
        found = await _consensus(me, source)
    weights, buffers, integers = found
    me.weights.set_(weights)
    for layout, values in ((source.buffers, buffers), (source.integers, integers)):
        if len(values):
            layout.scatter(values)
    if not me.follows:
        for member in me.members(me.group.rank)[1:]:
            for kind, x in enumerate(found):
                world.post(x, member, f"end {kind}")


async def _consensus(me: Learner, source: LoopSource) -> list[Tensor]:
    """Return the mean of the learners' weights, buffers and integer buffers."""
    # Without lock-step the strategy has ended with the consensus of the weights.
    weights = await me.group.mean(me.weights.snapshot()) if me.lock_step else me.weights.snapshot()
    found, counts = [weights], float(source.drawn > 0)
    for name, layout in (("buffers", source.buffers), ("integers", source.integers)):
        if not layout.tensors or me.seat.group.size == 1:
            found.append(torch.empty(0))
        elif me.lock_step:
            found.append(await _mean(me.group.plain, layout.gather(), counts))
        else:
            found.append(await me.averager.mean_of_trained(layout.gather(), name, counts))
    return [*found[:2], found[2].round()]


async def _mean(group: Group, x: Tensor, weight: float) -> Tensor:
    """Return the weighted mean; the plain one if all weights are 0, so that all learners end equal."""
    mean = await group.mean(x, weight)
    return await group.mean(x) if group.total_weight == 0 else mean
