"""Super-learners: their members take the gradients of one large learner; the super-learners run any other strategy.

    G_s = sum_i n_i g_i(w_s) / sum_i n_i      i: the members of super-learner s;      then `outer` with G_s for g

`SuperLearners(ADPSGD(), 8)` is H-ADPSGD: sums inside super-learners of eight behind the backward pass, an asynchronous
ring among them. Zhang et al. 2019. With SyncSGD as `outer` it is SyncSGD. The work inside a super-learner is in
`murmur.core.super_learner`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from murmur.core.facts import Facts, FactsOfInner, Planner, fact, layers, training_learners, vectors_of
from murmur.core.learner import Learner, Strategy
from murmur.core.membership import RunOver, StoppedGracefully
from murmur.core.super_learner import Leader, follow, form_again
from murmur.strategies.adpsgd import ADPSGD


@dataclass(frozen=True)
class SuperLearners(FactsOfInner):
    """Super-learners that run another strategy.

    Attributes:
        outer: Strategy of the super-learners.
        node_size: Learners of a super-learner; the last one has the remainder.

    Raises:
        ValueError: `node_size` is less than 1, or `outer` runs super-learners too.
    """

    outer: Strategy = field(default_factory=ADPSGD)
    node_size: int = 2

    def __post_init__(self) -> None:
        if self.node_size < 1:
            raise ValueError(f"SuperLearners needs node_size >= 1, got {self.node_size}")
        if any(isinstance(layer, SuperLearners) for layer in layers(self.outer)):
            raise ValueError("SuperLearners stands twice in one strategy: choose one node_size, the product of both")

    async def __call__(self, me: Learner) -> None:
        size = me.group.size
        first = range(0, size, self.node_size)
        members = [range(s, min(s + self.node_size, size)) for s in first]
        super_learner = me.group.split([] if me.seat.late else members)
        if me.seat.late:
            super_learner = await form_again(me, members[me.group.rank // self.node_size])
        leaders = me.group.split([first])
        assert super_learner is not None
        if leaders is None:
            await follow(me, super_learner)
            me.follows = True
        else:
            leader = Leader(me, super_learner, leaders, first)
            try:
                await self.outer(leader)
            except (RunOver, StoppedGracefully):
                leader.end()
                raise
            leader.saved = None  # a server has told its members of no checkpoint; here it would mean a stop
            leader.end()
            me.continue_as(leader)

    @property
    def inner(self) -> Strategy:
        return self.outer

    @property
    def gradients_a_step(self) -> int | None:
        outer = fact(self.outer, "gradients_a_step")
        return None if outer is None else outer * self.node_size

    @property
    def tolerates_loss(self) -> bool:
        outer = Facts.of(self.outer)
        return outer.tolerates_loss and not outer.lock_step  # leaders form no elastic group

    def training_learners(self, learners: int) -> int:
        """Return the learners but the members of the first super-learners, if these serve."""
        leaders = -(-learners // self.node_size)
        return learners - self.node_size * (leaders - training_learners(self.outer, leaders))

    def vectors_sent(self, learners: int, samples: float) -> float:
        """Sums inside super-learners, messages among leaders, and copies from each leader to its members.

        Members get a copy after each exchange among leaders; where exchanges only add to weights, one a gradient.
        """
        leaders = -(-learners // self.node_size)
        members = (learners - leaders) / learners  # the last super-learner may be smaller
        outer = vectors_of(self.outer, leaders, samples)  # frames between averages are those of a member
        copies = 0.0 if outer == 0 else members / (fact(self.outer, "sets_weights_every") or 1)
        return 2 * members + outer * leaders / learners + copies

    @property
    def least_learners(self) -> int:
        return self.node_size

    def planned(self, planner: Planner) -> Any:
        return planner.nodes(self.outer, self.node_size)
