"""Super-learners: the learners of a node take the gradients of one large learner; the nodes run any other strategy.

    G_s = sum_i n_i g_i(w_s) / sum_i n_i      i: the learners of node s;      then `outer` with G_s in the place of g

`SuperLearners(ADPSGD(), 8)` is H-ADPSGD: sums inside nodes of eight behind the backward pass, an asynchronous ring
among the nodes. Zhang et al. 2019. With SyncSGD as `outer` it is SyncSGD. How a node works together: `murmur.node`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from murmur.learner import Learner, Strategy
from murmur.node import Leader, follow
from murmur.roll import Halted, RunOver
from murmur.strategies.adpsgd import ADPSGD


@dataclass(frozen=True)
class SuperLearners:
    """Nodes of `node_size` learners each (the last one takes what is left) run `outer`."""

    outer: Strategy = field(default_factory=ADPSGD)
    node_size: int = 2

    def __post_init__(self) -> None:
        if self.node_size < 1:
            raise ValueError(f"SuperLearners needs node_size >= 1, got {self.node_size}")

    async def __call__(self, me: Learner) -> None:
        size = me.group.size
        first = range(0, size, self.node_size)
        node = me.group.split([range(s, min(s + self.node_size, size)) for s in first])
        leaders = me.group.split([first])
        assert node is not None
        if leaders is None:
            await follow(me, node)
            me.follows = True
        else:
            leader = Leader(me, node, leaders, first)
            try:
                await self.outer(leader)
            except (RunOver, Halted):
                leader.end()
                raise
            leader.end()
            me.continue_as(leader)
