"""Who is here, who does which minibatch, who has come how far: the register of a group and one learner's line to it.

A register is plain bookkeeping, kept in one place of a world (its event queue, its process, its store). Views are
numbered; a learner that comes back, or that was thought dead and was not, gets a new incarnation, so that nobody takes
its old messages for new ones. A lost learner's unfinished minibatch goes to the next one that asks.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

ENDED = "ended"  # the stage of a learner that has brought its run to the end together with the others


class RunOver(Exception):
    """A learner came so late that the others have done everything."""


class StoppedGracefully(Exception):
    """A run was asked to stop and has saved all that it needs to go on; `minibatches` were handed out by then."""

    def __init__(self, minibatches: int) -> None:
        super().__init__(f"stopped as it was asked to, and saved after {minibatches} minibatches")
        self.minibatches = minibatches


@dataclass(frozen=True)
class View:
    """Who is alive.

    Attributes:
        number: grows with every change.
        incarnations: of the live learners, by rank; a learner that joins again gets a higher one.
        left: learners that have ended well: the others have brought the run to its end.
    """

    number: int
    incarnations: Mapping[int, int]
    left: int = 0

    @cached_property
    def live(self) -> tuple[int, ...]:
        """The ranks of the live learners, in order."""
        return tuple(sorted(self.incarnations))


@dataclass
class MembershipTable:
    """The bookkeeping behind `Membership`; not safe for threads by itself.

    Attributes:
        view: the present one.
        lost: learners that were lost, one entry a time.
    """

    view: View
    lost: list[int] = field(default_factory=list)
    _joined: int = 0
    _next: int | None = None
    _total: int = 0
    _returned: list[int] = field(default_factory=list)
    _open: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    _stages: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def of(cls, size: int) -> MembershipTable:
        """A register in which ranks 0 to size - 1 are alive."""
        return cls(View(0, dict.fromkeys(range(size), 0)))

    def join(self, rank: int) -> View:
        """A learner is (again) here; whatever it held before is no longer its own."""
        self._give_back(rank)
        self._joined += 1
        self.view = View(self.view.number + 1, {**self.view.incarnations, rank: self._joined}, self.view.left)
        for reached in self._stages.values():
            reached.discard(rank)
        return self.view

    def lose(self, rank: int) -> None:
        """A learner is gone."""
        if rank in self.view.incarnations:
            self._give_back(rank)
            self.lost.append(rank)
            self._without(rank, left=0)

    def leave(self, rank: int) -> None:
        """A learner has ended; well, if it had come to the stage `ENDED`."""
        if rank in self.view.incarnations:
            self._give_back(rank)
            self._without(rank, left=int(rank in self._stages[ENDED]))

    def claim(self, rank: int, first: int, total: int, size: int = 1, doing: Collection[int] = ()) -> range | None:
        """The next numbers in first .. total - 1 that no learner has done or is doing, at most `size` of them.

        The rank's earlier ones are done, but for those it says it is still `doing` (it asks ahead). Numbers that were
        given back come first, in runs without a gap.
        """
        self._open[rank] &= set(doing)
        if self._next is None:
            self._next = first
        self._total = total
        if rank not in self.view.incarnations:
            return None
        if self._returned:
            start = end = heapq.heappop(self._returned)
            while (end := end + 1) < start + size and self._returned[:1] == [end]:
                heapq.heappop(self._returned)
        elif self._next < total:
            start, end = self._next, min(self._next + size, total)
            self._next = end
        else:
            return None
        self._open[rank].update(range(start, end))
        return range(start, end)

    def done(self, rank: int, number: int) -> None:
        """The rank has done this one."""
        self._open[rank].discard(number)

    def unfinished(self) -> list[int]:
        """Numbers that have been handed out and are not done, in order."""
        return sorted({*self._returned, *(number for held in self._open.values() for number in held)})

    @property
    def complete(self) -> bool:
        """Whether no learner was lost, and none has joined, since the beginning."""
        return not self.lost and self._joined == 0

    @property
    def spent(self) -> bool:
        """Whether every number has been done: none is left, none is under way."""
        handed_out = self._next is not None and self._next >= self._total and not self._returned
        return handed_out and not any(self._open.values())

    def arrive(self, rank: int, barrier: str) -> bool:
        """The learner has come to a stage; whether all that are alive have."""
        self._stages[barrier].add(rank)
        return self._stages[barrier] >= set(self.view.incarnations)

    def _give_back(self, rank: int) -> None:
        for number in self._open.pop(rank, ()):
            heapq.heappush(self._returned, number)

    def _without(self, rank: int, left: int) -> None:
        rest = {r: i for r, i in self.view.incarnations.items() if r != rank}
        self.view = View(self.view.number + 1, rest, self.view.left + left)


@dataclass(frozen=True)
class Preparation:
    """What a learner does for a claim before it is due.

    Attributes:
        seconds: it takes, about.
        begin: start it in the background, for the numbers of a claim.
    """

    seconds: float = 0.0
    begin: Callable[[range], None] = lambda _: None


NOTHING = Preparation()


class Membership(ABC):
    """One learner's line to the register of its group. No verb waits for another learner."""

    @abstractmethod
    def view(self, fresh: bool = False) -> View:
        """Who is alive, as far as is known here; `fresh` asks the register itself."""

    @abstractmethod
    def claim(self, first: int, total: int, size: int = 1) -> range | None:
        """The numbers of this learner's next minibatches; None when at present none is left.

        There are `size` of them; fewer at the end of the budget, or where what a lost learner held is done again. Those
        of the claim before are done.
        """

    def unfinished(self) -> Collection[int]:
        """Numbers that were handed out to anybody and are not done, as far as is known here."""
        return ()

    def expect(self, seconds: float, preparation: Preparation = NOTHING) -> None:  # noqa: B027 - most claims take no time
        """The gradient of the latest claim has begun; the next claim comes in about so many seconds (0: not known).

        A roll that knows the next claim before it is due lets its preparation begin.
        """

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether no learner was lost, and none has joined, since the beginning."""

    @property
    @abstractmethod
    def spent(self) -> bool:
        """Whether every minibatch of the budget has been done."""

    @abstractmethod
    def arrive(self, barrier: str) -> bool:
        """This learner has come to a stage of its program; whether all that are alive have. Asked until it is true."""

    @abstractmethod
    def leave(self) -> None:
        """This learner has ended and answers nobody any more."""


class LocalMembership(Membership):
    """A line to a register in the same process and thread (the virtual world)."""

    def __init__(self, table: MembershipTable, rank: int) -> None:
        self.table, self.rank = table, rank

    def view(self, fresh: bool = False) -> View:  # noqa: ARG002 - always fresh
        return self.table.view

    def claim(self, first: int, total: int, size: int = 1) -> range | None:
        return self.table.claim(self.rank, first, total, size)

    def unfinished(self) -> Collection[int]:
        return self.table.unfinished()

    @property
    def complete(self) -> bool:
        return self.table.complete

    @property
    def spent(self) -> bool:
        return self.table.spent

    def arrive(self, barrier: str) -> bool:
        return self.table.arrive(self.rank, barrier)

    def leave(self) -> None:
        self.table.leave(self.rank)
