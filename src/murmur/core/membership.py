"""Membership, minibatch claims and barriers of a group: the table, and each learner's client of it.

A table is plain bookkeeping, kept in one place of a world (its event queue, its process, its store). Views are
numbered. A learner that comes back, or that was wrongly considered dead, gets a new incarnation, so that its old
messages are not taken for new ones. A lost learner's unfinished minibatch goes to the next learner that claims one.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

ENDED = "ended"  # barrier at which all learners end their run


class RunOver(Exception):
    """A learner came after the other learners had finished the run."""

    def __init__(self) -> None:
        super().__init__(
            "the other learners had finished the run, or this block of the program, before this learner came"
        )


class StoppedGracefully(Exception):
    """A run has stopped on request and saved all that it needs to go on, after `minibatches` were handed out."""

    def __init__(self, minibatches: int) -> None:
        super().__init__(f"stopped as it was asked to, and saved after {minibatches} minibatches")
        self.minibatches = minibatches


@dataclass(frozen=True)
class View:
    """The live learners of a group at one moment.

    Attributes:
        number: Number of the view; it grows with every change.
        incarnations: Incarnations of the live learners, by rank; a learner that joins again gets a higher one.
        left: Number of learners that have left after the end of the run.
    """

    number: int
    incarnations: Mapping[int, int]
    left: int = 0

    @cached_property
    def live(self) -> tuple[int, ...]:
        return tuple(sorted(self.incarnations))


@dataclass(frozen=True)
class Shares:
    """Shares of the numbers, in place of claims of the next free one.

        rank r takes places[r] + t of, and those behind it up to the next place, in its turns t = 0, 1, 2, ...

    Attributes:
        places: For each rank, its first position in a turn, in increasing order.
        of: Numbers in a turn of all ranks.
    """

    places: tuple[int, ...]
    of: int

    def of_rank(self, rank: int, turn: int, first: int, total: int) -> range:
        """Return the numbers of a rank in a turn, of first .. total - 1; none behind the end."""
        start = first + self.places[rank] + turn * self.of
        end = first + (*self.places, self.of)[rank + 1] + turn * self.of
        return range(min(start, total), min(end, total))


@dataclass
class MembershipTable:
    """The bookkeeping behind `Membership`; not safe for threads by itself.

    Attributes:
        view: The present view.
        lost: Ranks of the learners that were lost, one entry per loss.
    """

    view: View
    lost: list[int] = field(default_factory=list)
    _joined: int = 0
    _first: int | None = None
    _next: int = 0
    _total: int = 0
    _shares: Shares | None = None
    _turns: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # begun turns of each share
    _returned: list[int] = field(default_factory=list)
    _open: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    _barriers: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def of(cls, size: int) -> MembershipTable:
        """Return a table in which ranks 0 to size - 1 are alive."""
        return cls(View(0, dict.fromkeys(range(size), 0)))

    def join(self, rank: int) -> View:
        """Add a learner, perhaps again; its earlier claims are given back."""
        self._give_back(rank)
        self._joined += 1
        self.view = View(self.view.number + 1, {**self.view.incarnations, rank: self._joined}, self.view.left)
        for reached in self._barriers.values():
            reached.discard(rank)
        return self.view

    def lose(self, rank: int) -> None:
        if rank in self.view.incarnations:
            self._give_back(rank)
            self.lost.append(rank)
            self._without(rank, left=0)

    def leave(self, rank: int) -> None:
        """Remove a learner that has ended; it has left in order if it had arrived at the barrier `ENDED`."""
        if rank in self.view.incarnations:
            self._give_back(rank)
            self._without(rank, left=int(rank in self._barriers[ENDED]))

    def divide(self, shares: Shares) -> None:
        """Divide the numbers into shares, before the first claim. Later calls must divide them in the same way.

        Raises:
            ValueError: They are divided in another way, or claimed already.
        """
        if self._shares != shares and (self._shares is not None or self._first is not None):
            raise ValueError(f"the numbers are divided as {self._shares}, and cannot be divided as {shares}")
        self._shares = shares

    def renumber(self) -> None:
        """Give the view a new number, so that all learners look at what is known of the lost ones."""
        self.view = replace(self.view, number=self.view.number + 1)

    def claim(self, rank: int, first: int, total: int, size: int = 1, doing: Collection[int] = ()) -> range | None:
        """Claim the next numbers in first .. total - 1 that no learner has done or is doing, at most `size` of them.

        The rank's earlier claims are marked done, except the numbers in `doing` (a learner may claim ahead). Numbers
        that were given back come first, in runs without a gap. If the numbers are divided into shares, those of the
        rank's own share come before them, and what lost learners have left of theirs after them.
        """
        self._open[rank] &= set(doing)
        if self._first is None:
            self._first = self._next = first
        self._total = total
        if rank not in self.view.incarnations:
            return None
        found = self._of_shares([rank]) or self._given_back(size) or self._unclaimed(size)
        rest = found[size:]  # of the share of a larger super-learner that is lost
        for number in rest:
            heapq.heappush(self._returned, number)
        self._open[rank].update(found[:size])
        return found[:size] or None

    def _given_back(self, size: int) -> range:
        if not self._returned:
            return range(0)
        start = end = heapq.heappop(self._returned)
        while (end := end + 1) < start + size and self._returned[:1] == [end]:
            heapq.heappop(self._returned)
        return range(start, end)

    def _unclaimed(self, size: int) -> range:
        if self._shares is not None:
            return self._of_shares([r for r in range(len(self._shares.places)) if r not in self.view.incarnations])
        start, self._next = self._next, min(self._next + size, max(self._total, self._next))
        return range(start, self._next)

    def _of_shares(self, ranks: Collection[int]) -> range:
        """Return the next numbers of the first of these shares that has any left."""
        for rank in ranks:
            if found := self.following(rank):
                self._turns[rank] += 1
                self._next = max(self._next, found.stop)
                return found
        return range(0)

    def following(self, rank: int) -> range:
        """Return the next numbers of a rank's own share; none if the numbers are not divided, or it has no share."""
        if self._shares is None or self._first is None or rank >= len(self._shares.places):
            return range(0)
        return self._shares.of_rank(rank, self._turns[rank], self._first, self._total)

    def done(self, rank: int, number: int) -> None:
        self._open[rank].discard(number)

    def unfinished(self) -> list[int]:
        """Return the numbers handed out and not done, in order; with shares, all numbers before the last such one."""
        held = (n for numbers in self._open.values() for n in numbers)
        passed_over = (n for part in self._left_of_shares(self._next) for n in part)
        return sorted({*self._returned, *held, *passed_over})

    def _left_of_shares(self, end: int) -> Iterator[range]:
        """Yield the numbers of all shares before `end` that were not handed out."""
        if self._shares is None or self._first is None:
            return
        for rank in range(len(self._shares.places)):
            turn = self._turns[rank]
            while found := self._shares.of_rank(rank, turn, self._first, end):
                yield found
                turn += 1

    @property
    def complete(self) -> bool:
        return not self.lost and self._joined == 0

    @property
    def spent(self) -> bool:
        """True if every number has been done: none is left and none is under way."""
        if self._first is None or self._returned or any(self._open.values()):
            return False
        return self._next >= self._total if self._shares is None else not any(self._left_of_shares(self._total))

    @property
    def undone(self) -> int | None:
        """Number of minibatches of the budget that no learner has done; None if none was ever claimed here."""
        if self._first is None:
            return None
        handed_back = len(self._returned) + sum(map(len, self._open.values()))
        left = map(len, self._left_of_shares(self._total))
        return handed_back + (max(0, self._total - self._next) if self._shares is None else sum(left))

    def arrive(self, rank: int, barrier: str) -> bool:
        self._barriers[barrier].add(rank)
        return self._barriers[barrier] >= set(self.view.incarnations)

    def _give_back(self, rank: int) -> None:
        for number in self._open.pop(rank, ()):
            heapq.heappush(self._returned, number)

    def _without(self, rank: int, left: int) -> None:
        rest = {r: i for r, i in self.view.incarnations.items() if r != rank}
        self.view = View(self.view.number + 1, rest, self.view.left + left)


@dataclass(frozen=True)
class Preparation:
    """Work for a claim that a learner can do before the claim is due.

    Attributes:
        seconds: Approximate duration.
        begin: Starts the work in the background, for the numbers of a claim.
    """

    seconds: float = 0.0
    begin: Callable[[range], None] = lambda _: None


NOTHING = Preparation()


class Membership(ABC):
    """One learner's client of its group's membership table. No method waits for another learner."""

    @abstractmethod
    def view(self, fresh: bool = False) -> View:
        """Return the view as known here; `fresh` asks the table itself."""

    @abstractmethod
    def claim(self, first: int, total: int, size: int = 1) -> range | None:
        """Claim the numbers of this learner's next minibatches; None when none is left at present.

        There are `size` of them, or fewer at the end of the budget and in claims that a lost learner gave back. The
        minibatches of the previous claim count as done.
        """

    @abstractmethod
    def divide(self, shares: Shares) -> None:
        """Divide the numbers into shares, before the first claim; all members of the group do.

        A claim then takes the next numbers of this learner's own share. When that is used up, it takes what lost
        learners have left of theirs.
        """

    def unfinished(self) -> Collection[int]:
        """Return the numbers handed out to any learner and not done, as known here."""
        return ()

    def expect(self, seconds: float, preparation: Preparation = NOTHING) -> None:  # noqa: B027 - most claims take no time
        """Announce that the gradient of the latest claim has begun; the next claim comes in about `seconds`.

        0 means that the time is unknown. A client that holds the next claim ahead lets its preparation begin.
        """

    @property
    @abstractmethod
    def complete(self) -> bool:
        """True if no learner has been lost or has joined since the beginning."""

    @property
    @abstractmethod
    def spent(self) -> bool:
        """True if every minibatch of the budget has been done."""

    @property
    def undone(self) -> int | None:
        """Number of minibatches of the budget that no learner has done, also after losses; None if it is unknown."""
        return None

    @property
    def over(self) -> bool:
        """True if nothing is left to do for a learner that comes late."""
        return self.spent

    @abstractmethod
    def arrive(self, barrier: str) -> bool:
        """Arrive at a barrier; return True if all live learners have. Call it until it returns True."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the group; this learner has ended and answers no more messages."""


class LocalMembership(Membership):
    """Client of a table in the same process and thread (the virtual world)."""

    def __init__(self, table: MembershipTable, rank: int) -> None:
        self.table, self.rank = table, rank

    def view(self, fresh: bool = False) -> View:  # noqa: ARG002 - always fresh
        return self.table.view

    def claim(self, first: int, total: int, size: int = 1) -> range | None:
        return self.table.claim(self.rank, first, total, size)

    def divide(self, shares: Shares) -> None:
        self.table.divide(shares)

    def expect(self, seconds: float, preparation: Preparation = NOTHING) -> None:  # noqa: ARG002 - no matter when
        if following := self.table.following(self.rank):
            preparation.begin(following)

    def unfinished(self) -> Collection[int]:
        return self.table.unfinished()

    @property
    def complete(self) -> bool:
        return self.table.complete

    @property
    def spent(self) -> bool:
        return self.table.spent

    @property
    def undone(self) -> int | None:
        return self.table.undone

    def arrive(self, barrier: str) -> bool:
        return self.table.arrive(self.rank, barrier)

    def leave(self) -> None:
        self.table.leave(self.rank)
