"""The end of a joined loop: all learners take over the consensus of the strategy, weights and buffers.

Whole numbers among the buffers become the rounded mean, which leaves those that are equal everywhere as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from murmur.core.group import Group
from murmur.core.learner import Learner
from murmur.user_loop.source import LoopSource


async def take_over(me: Learner, world: Group, source: LoopSource) -> None:
    """Give the model the mean of all learners' weights and buffers; who led a node tells its members.

    Args:
        me: the learner, when its strategy has ended.
        world: all learners.
        source: of its model.
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
    """The learners' mean weights, buffers and whole numbers."""
    # Without lock-step the strategy has ended with the consensus of the weights.
    weights = await me.group.mean(me.weights.snapshot()) if me.lock_step else me.weights.snapshot()
    found = [weights]
    for name, layout in (("buffers", source.buffers), ("integers", source.integers)):
        if not layout.tensors or me.seat.group.size == 1:
            found.append(torch.empty(0))
        elif me.lock_step:
            found.append(await me.group.plain.mean(layout.gather()))
        else:
            found.append(await me.averager.consensus(layout.gather(), name))
    return [*found[:2], found[2].round()]
