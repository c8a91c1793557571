"""Fixed shares of the minibatches: each learner takes those assigned to it before the run, and claims no others.

    learner i takes n = i, i + L, i + 2 L, ...      in place of      the next free n for the next free learner

The share of a super-learner is that of all its members.

For strategies in which all learners claim (ADPSGD): published asynchronous systems with partitioned data work this way.
No other learner takes over a straggler's share, so the run lasts as long as the slowest learner needs for its L-th
part; only what a lost learner has left is taken over, by those that have done their own. With `task.chunks.parts` = L a
share is also a fixed part of the corpus. Lock-step strategies assign minibatches like this anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from murmur.core.facts import Facts, FactsOfInner, check_only_layer, some_serve
from murmur.core.group import Group, GroupAround
from murmur.core.learner import Learner, Strategy
from murmur.core.membership import Membership, Shares
from murmur.strategies.adpsgd import ADPSGD


class SharesGroup(GroupAround):
    """The learners of `inner`, with a membership whose numbers are divided into shares.

    Args:
        inner: Group of learners or super-learners.
        places: Position of each, or of its first member, among all `of` learners.
        of: Number of learners.
    """

    def __init__(self, inner: Group, places: Sequence[int], of: int) -> None:
        super().__init__(inner)
        self._places, self._of = places, of

    @cached_property
    def membership(self) -> Membership:
        membership = self.inner.membership
        membership.divide(Shares(tuple(self._places), self._of))
        return membership

    def split(self, parts: Sequence[Sequence[int]]) -> SharesGroup | None:
        part = self.inner.split(parts)
        if part is None:
            return None
        mine = next(p for p in parts if self.rank in p)
        return SharesGroup(part, [self._places[r] for r in mine], self._of)


@dataclass(frozen=True)
class OwnShares(FactsOfInner):
    """`strategy` with shares assigned before the run.

    Raises:
        ValueError: `strategy` goes in lock-step, has servers, or assigns shares itself.
    """

    strategy: Strategy = field(default_factory=ADPSGD)

    def __post_init__(self) -> None:
        check_only_layer(self)
        name = type(self.strategy).__name__
        if Facts.of(self.strategy).lock_step:
            raise ValueError(f"{name} goes in lock-step and assigns each learner its share already: without OwnShares")
        if some_serve(self.strategy):
            raise ValueError(f"{name} cannot run with assigned shares: its servers would leave theirs undone")

    async def __call__(self, me: Learner) -> None:
        me.group = SharesGroup(me.group, [me.role.members(r).start for r in range(me.group.size)], me.seat.group.size)
        await self.strategy(me)

    @property
    def inner(self) -> Strategy:
        return self.strategy

    @property
    def assigns_minibatches(self) -> bool:
        return True

    @property
    def tolerates_loss(self) -> bool:
        return Facts.of(self.strategy).tolerates_loss
