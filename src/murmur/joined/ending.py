"""The end of a joined loop: all learners take over the consensus of the strategy, weights and buffers."""

from __future__ import annotations

import torch
from torch import Tensor

from murmur.group import Group
from murmur.joined.source import LoopSource
from murmur.learner import Learner


async def take_over(me: Learner, world: Group, source: LoopSource) -> None:
    """Give the model the mean of all learners' weights and buffers; who led a node tells its members.

    Args:
        me: the learner, when its strategy has ended.
        world: all learners.
        source: of its model.
    """
    if me.follows:
        weights, buffers = [(await world.recv(None, f"end {kind}")).x for kind in range(2)]
    else:
        weights, buffers = await _consensus(me, source)
    me.weights.set_(weights)
    if source.buffers.tensors:
        source.buffers.scatter(buffers)
    if not me.follows:
        for member in me.members(me.group.rank)[1:]:
            for kind, x in enumerate((weights, buffers)):
                world.post(x, member, f"end {kind}")


async def _consensus(me: Learner, source: LoopSource) -> tuple[Tensor, Tensor]:
    if not me.in_step:  # the strategy has ended with the consensus of the weights
        return me.weights.snapshot(), await me.flock.consensus(source.buffers.gather(), "buffers")
    weights = await me.group.mean(me.weights.snapshot())
    return weights, await me.group.mean(source.buffers.gather()) if source.buffers.tensors else torch.empty(0)
