"""Fixed shares of the minibatches: each learner takes those assigned to it before the run, and claims no others.

    learner i takes n = i, i + L, i + 2 L, ...      in place of      the next free n for the next free learner

The share of a super-learner is that of all its members.

For strategies in which all learners claim (ADPSGD): published asynchronous systems with partitioned data work this way.
No other learner takes over a straggler's share, so the run lasts as long as the slowest learner needs for its L-th
part. No other learner takes over the rest of a lost learner's share either: a run with a lost learner ends as
incomplete, and a launcher starts all learners again from the newest checkpoint. With `task.chunks.parts` = L a share is
also a fixed part of the corpus. Lock-step strategies assign minibatches like this anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from murmur.core.barrier import Barrier
from murmur.core.facts import FactsOfInner, learners_for, vectors_of
from murmur.core.group import Group, GroupAround
from murmur.core.learner import Learner, Strategy
from murmur.core.membership import NOTHING, Membership, Preparation, View
from murmur.strategies.adpsgd import ADPSGD

DONE = "own share done"


class ShareMembership(Membership):
    """Membership that hands out this learner's share; everything else comes from the group's membership table.

    Args:
        group: Group of the learners.
        places: Position of each learner, or of the first member of its super-learner, among all `of` learners.
        of: Number of learners.
    """

    def __init__(self, group: Group, places: Sequence[int], of: int) -> None:
        self._group, self._places, self._of = group, places, of
        self._barrier = Barrier(group, DONE)
        self._left = True
        self._doing = 0
        self._next: range | None = None
        self._span = (0, 0)

    def view(self, fresh: bool = False) -> View:
        return self._group.membership.view(fresh)

    def claim(self, first: int, total: int, size: int = 1) -> range | None:
        # The shared counter holds the claims that are done: a learner that is started again repeats the open one.
        turn = self._group.count(f"share of {self._group.rank}", self._doing)
        start = first + self._places[self._group.rank] + turn * self._of
        self._span, self._left = (first, total), start < total
        self._doing = int(self._left)
        following = range(start + self._of, min(start + self._of + size, total))
        self._next = following or None
        return range(start, min(start + size, total)) or None

    def _rest(self, rank: int, done: int) -> list[int]:
        """Return the share of a learner without its first claims."""
        (first, total), place = self._span, self._places[rank]
        size = (*self._places[rank + 1 : rank + 2], self._of)[0] - place
        starts = range(first + place + done * self._of, total, self._of)
        return [n for start in starts for n in range(start, min(start + size, total))]

    def unfinished(self) -> Collection[int]:
        """Return the open and later claims of this learner, and the rest of the shares of lost ones."""
        ranks = {self._group.rank, *range(self._group.size)} - ({*self.view().live} - {self._group.rank})
        return [n for rank in ranks for n in self._rest(rank, self._group.count(f"share of {rank}"))]

    @property
    def undone(self) -> int | None:
        return sum(len(self._rest(rank, self._group.count(f"share of {rank}"))) for rank in range(self._group.size))

    def expect(self, seconds: float, preparation: Preparation = NOTHING) -> None:  # noqa: ARG002 - no matter when
        if self._next is not None:
            preparation.begin(self._next)

    @property
    def complete(self) -> bool:
        return self._group.membership.complete

    @property
    def spent(self) -> bool:
        return not self._left and self._barrier.arrive()

    def arrive(self, barrier: str) -> bool:
        return self._group.membership.arrive(barrier)

    def leave(self) -> None:
        self._group.membership.leave()


class SharesGroup(GroupAround):
    """The learners of `inner`, with a membership that hands out shares."""

    def __init__(self, inner: Group, places: Sequence[int], of: int) -> None:
        super().__init__(inner)
        self._places, self._of = places, of
        self._shares = ShareMembership(inner, places, of)

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
    """`strategy` with shares assigned before the run."""

    strategy: Strategy = field(default_factory=ADPSGD)
    assigns_minibatches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if learners_for(self.strategy, 2) > 2:
            name = type(self.strategy).__name__
            raise ValueError(f"{name} cannot run with assigned shares: its servers would leave theirs undone")

    async def __call__(self, me: Learner) -> None:
        me.group = SharesGroup(me.group, me.keepers, me.seat.group.size)
        await self.strategy(me)

    @property
    def inner(self) -> Strategy:
        return self.strategy

    def vectors_sent(self, learners: int, samples: float) -> float:
        return vectors_of(self.strategy, learners, samples)
