"""Every learner takes its own share of the minibatches, dealt out before the run, instead of claiming the next one.

    learner i takes n = i, i + L, i + 2 L, ...      in place of      whoever is free takes the next n

For strategies all of whose learners claim (ADPSGD): this is how published asynchronous systems with partitioned data
work. A straggler's share is done by nobody else, so the run lasts as long as the slowest learner needs for its
L-th part; what a lost learner had not done is never done. With `task.chunks.parts` = L a share is a fixed part of the
corpus too. Strategies that go in step deal out like this anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from murmur.facts import Facts, vectors_of
from murmur.group import Group, GroupAround
from murmur.learner import Learner, Strategy
from murmur.roll import NOTHING, Preparation, Roll, View
from murmur.strategies.adpsgd import ADPSGD
from murmur.strategies.asgd import ASGD

DONE = "own share done"


class ShareRoll(Roll):
    """Hands out this learner's share; everything else is the group's register."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._left = True
        self._next: int | None = None
        self._share = range(0)

    def view(self, fresh: bool = False) -> View:
        return self._group.roll.view(fresh)

    def claim(self, first: int, total: int) -> int | None:
        # Counted where all learners count: one that is started again goes on behind what it had begun.
        turn = self._group.count(f"share of {self._group.rank}", 1) - 1
        number = first + self._group.rank + turn * self._group.size
        self._share = range(number, total, self._group.size)
        self._left = number < total
        self._next = number + self._group.size if number + self._group.size < total else None
        return number if self._left else None

    def unfinished(self) -> Collection[int]:
        """What is left of this learner's own share; the others know of theirs."""
        return self._share

    def expect(self, seconds: float, preparation: Preparation = NOTHING) -> None:  # noqa: ARG002 - no matter when
        if self._next is not None:
            preparation.begin(self._next)

    @property
    def spent(self) -> bool:
        return not self._left and self._group.roll.reach(DONE)

    def reach(self, stage: str) -> bool:
        return self._group.roll.reach(stage)

    def leave(self) -> None:
        self._group.roll.leave()


class SharesGroup(GroupAround):
    """The learners of `inner`, whose roll hands out shares."""

    def __init__(self, inner: Group) -> None:
        super().__init__(inner)
        self._shares = ShareRoll(inner)

    @property
    def roll(self) -> Roll:
        return self._shares

    def split(self, parts: Sequence[Sequence[int]]) -> SharesGroup | None:
        part = self.inner.split(parts)
        return None if part is None else SharesGroup(part)


@dataclass(frozen=True)
class OwnShares:
    """`strategy` with shares dealt out before the run."""

    strategy: Strategy = field(default_factory=ADPSGD)

    def __post_init__(self) -> None:
        if isinstance(self.strategy, ASGD):
            raise ValueError("ASGD cannot have its minibatches dealt out: its server would leave its share undone")

    async def __call__(self, me: Learner) -> None:
        me.group = SharesGroup(me.group)
        await self.strategy(me)

    @property
    def lock_step(self) -> bool:
        return Facts.of(self.strategy).lock_step

    @property
    def tolerates_loss(self) -> bool:
        return Facts.of(self.strategy).tolerates_loss

    @property
    def bitwise_alone(self) -> bool:
        return Facts.of(self.strategy).bitwise_alone

    @property
    def ends_equal(self) -> bool:
        return Facts.of(self.strategy).ends_equal

    @property
    def follows_losses(self) -> bool:
        return Facts.of(self.strategy).follows_losses

    def vectors_sent(self, learners: int, samples: float) -> float:
        return vectors_of(self.strategy, learners, samples)
