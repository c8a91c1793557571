"""Every learner takes its own share of the minibatches, dealt out before the run, instead of claiming the next one.

    learner i takes n = i, i + L, i + 2 L, ...      in place of      whoever is free takes the next n

The share of a super-learner is that of all members of its node.

For strategies all of whose learners claim (ADPSGD): this is how published asynchronous systems with partitioned data
work. A straggler's share is done by nobody else, so the run lasts as long as the slowest learner needs for its
L-th part; what a lost learner had not done is never done. With `task.chunks.parts` = L a share is a fixed part of the
corpus too. Strategies that go in step deal out like this anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from murmur.core.facts import Facts, FactsOfInner, vectors_of
from murmur.core.group import Group, GroupAround
from murmur.core.learner import Learner, Strategy
from murmur.core.membership import NOTHING, Membership, Preparation, View
from murmur.strategies.adpsgd import ADPSGD
from murmur.strategies.asgd import ASGD

DONE = "own share done"


class ShareMembership(Membership):
    """Hands out this learner's share; everything else is the group's register.

    Args:
        group: the learners.
        place: of this learner, or of the first member of its node, among all `of` learners.
        of: how many there are.
    """

    def __init__(self, group: Group, place: int, of: int) -> None:
        self._group, self._place, self._of = group, place, of
        self._left = True
        self._next: range | None = None
        self._rest = (range(0), 0, 0)  # where its claims begin that are not done, of how many, and the budget's end

    def view(self, fresh: bool = False) -> View:
        return self._group.membership.view(fresh)

    def claim(self, first: int, total: int, size: int = 1) -> range | None:
        # Counted where all learners count: one that is started again goes on behind what it had begun.
        turn = self._group.count(f"share of {self._group.rank}", 1) - 1
        start = first + self._place + turn * self._of
        self._rest = range(start, total, self._of), size, total
        self._left = start < total
        following = range(start + self._of, min(start + self._of + size, total))
        self._next = following or None
        return range(start, min(start + size, total)) or None

    def unfinished(self) -> Collection[int]:
        """What is left of this learner's own share; the others know of theirs."""
        starts, size, total = self._rest
        return [n for start in starts for n in range(start, min(start + size, total))]

    def expect(self, seconds: float, preparation: Preparation = NOTHING) -> None:  # noqa: ARG002 - no matter when
        if self._next is not None:
            preparation.begin(self._next)

    @property
    def complete(self) -> bool:
        return self._group.membership.complete

    @property
    def spent(self) -> bool:
        return not self._left and self._group.membership.arrive(DONE)

    def arrive(self, barrier: str) -> bool:
        return self._group.membership.arrive(barrier)

    def leave(self) -> None:
        self._group.membership.leave()


class SharesGroup(GroupAround):
    """The learners of `inner`, whose roll hands out shares."""

    def __init__(self, inner: Group, places: Sequence[int], of: int) -> None:
        super().__init__(inner)
        self._places, self._of = places, of
        self._shares = ShareMembership(inner, places[inner.rank], of)

    @property
    def membership(self) -> Membership:
        return self._shares

    def split(self, parts: Sequence[Sequence[int]]) -> SharesGroup | None:
        part = self.inner.split(parts)
        if part is None:
            return None
        mine = next(p for p in parts if self.rank in p)
        return SharesGroup(part, [self._places[r] for r in mine], self._of)


@dataclass(frozen=True)
class OwnShares(FactsOfInner):
    """`strategy` with shares dealt out before the run."""

    strategy: Strategy = field(default_factory=ADPSGD)
    assigns_minibatches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.strategy, ASGD):
            raise ValueError("ASGD cannot have its minibatches dealt out: its server would leave its share undone")

    async def __call__(self, me: Learner) -> None:
        me.group = SharesGroup(me.group, me.keepers, me.seat.group.size)
        await self.strategy(me)

    @property
    def inner(self) -> Strategy:
        return self.strategy

    @property
    def tolerates_loss(self) -> bool:
        return Facts.of(self.strategy).tolerates_loss

    def vectors_sent(self, learners: int, samples: float) -> float:
        return vectors_of(self.strategy, learners, samples)
