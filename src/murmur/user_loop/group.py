"""Groups of learners with minibatches of their own, of unknown number; each learner announces the end of its loop.

The engine's learners claim minibatches of one corpus. Here each learner claims the next minibatch of its own loop. The
budget is spent when the loops of all live learners are over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Sequence
from typing import Any

from torch import Tensor

from murmur.core.group import Group, GroupAround, PeerLost
from murmur.core.membership import Membership, Shares, View
from murmur.core.world import Seat


class Leaving:
    """A sum under way. Once the sum is done or given up, it no longer keeps the connections of the sum open."""

    def __init__(self, under_way: Awaitable[Tensor]) -> None:
        self.under_way: Awaitable[Tensor] | None = under_way

    def __await__(self) -> Generator[Any, None, Tensor]:
        if self.under_way is None:
            raise PeerLost("the sum was given up")
        total = yield from self.under_way.__await__()
        self.under_way = None
        return total


class Loops:
    """State shared by the groups of a loop: loops that are over, announced through counters, and sums under way.

    Attributes:
        claims: Minibatches that this learner has claimed, for all that its claims stand for.
        claims_before: Those of them in earlier launches that are not counted in this one yet.
    """

    def __init__(self, world: Group) -> None:
        self.world = world
        self.claims_before = self.claims = 0
        self._over: set[int] = set()
        self._leaving: list[Leaving] = []

    def leaves(self, under_way: Awaitable[Tensor]) -> Leaving:
        """Wrap a sum that has begun."""
        self._leaving = [leaving for leaving in self._leaving if leaving.under_way is not None]
        self._leaving.append(Leaving(under_way))
        return self._leaving[-1]

    def give_up(self) -> None:
        """Give up all sums; when the connections close, the others learn that this learner is gone."""
        for leaving in self._leaving:
            leaving.under_way = None

    def announce(self, learners: Sequence[int]) -> None:
        """Announce that the loops of these learners offer no more steps, or that their steps are not needed."""
        for rank in learners:
            if rank not in self._over:
                self._over.add(rank)
                self.world.count(f"loop {rank} is over", 1)

    def over(self, learners: Sequence[int]) -> bool:
        """True if the loops of all these learners are over."""
        for rank in learners:
            if rank not in self._over:
                if self.world.count(f"loop {rank} is over") == 0:
                    return False
                self._over.add(rank)
        return True


class LoopMembership(Membership):
    """Membership of a group, with claims of minibatches from the learners' own loops."""

    def __init__(self, inner: Membership, group: JoinedGroup) -> None:
        self.inner, self.group = inner, group

    def view(self, fresh: bool = False) -> View:
        return self.inner.view(fresh)

    def claim(self, first: int, total: int, size: int = 1) -> range | None:  # noqa: ARG002 - loops end by themselves
        if self.group.over_for(self.group.rank):
            return None
        loops = self.group.loops
        end = first + self.group.count("claims", size + loops.claims_before)
        loops.claims, loops.claims_before = loops.claims + size, 0
        return range(end - size, end)

    def divide(self, shares: Shares) -> None:  # noqa: ARG002 - nothing to divide
        raise TypeError("minibatches come from the learners' own loops: they cannot be divided into shares")

    @property
    def complete(self) -> bool:
        return self.inner.complete

    @property
    def spent(self) -> bool:
        # A caller has no more minibatches, nor have its super-learner's members: their loops are over, or it serves.
        self.group.loops.announce(self.group.super_learner_of(self.group.rank))
        return all(self.group.over_for(rank) for rank in self.inner.view().live)

    @property
    def over(self) -> bool:
        # Unlike `spent`, it announces nothing: the loop of a caller that comes late has just begun.
        return all(self.group.over_for(rank) for rank in self.inner.view().live if rank != self.group.rank)

    def arrive(self, barrier: str) -> bool:
        return self.inner.arrive(barrier)

    def leave(self) -> None:
        self.inner.leave()


class JoinedGroup(GroupAround):
    """The learners of `inner`; `members` are their ranks in the group of all learners."""

    def __init__(self, inner: Group, loops: Loops, members: Sequence[int]) -> None:
        super().__init__(inner)
        self.loops, self.members = loops, list(members)
        self._membership: LoopMembership | None = None

    def over_for(self, rank: int) -> bool:
        """True if a member has no more minibatches; a leader answers for all members of its super-learner.

        Members ask it for themselves too, because a leader goes on while its super-learner has any minibatch.
        """
        return self.loops.over(self.super_learner_of(rank))

    def super_learner_of(self, rank: int) -> range:
        """Return the learners that a member represents: all ranks before the next member."""
        ends = [*self.members[1:], self.loops.world.size]
        return range(self.members[rank], ends[rank])

    @property
    def membership(self) -> Membership:
        if self._membership is None:
            self._membership = LoopMembership(self.inner.membership, self)
        return self._membership

    def split(self, parts: Sequence[Sequence[int]]) -> JoinedGroup | None:
        part = self.inner.split(parts)
        if part is None:
            return None
        mine = next(p for p in parts if self.rank in p)
        return JoinedGroup(part, self.loops, [self.members[r] for r in mine])

    def start_sum(self, x: Tensor) -> Awaitable[Tensor]:
        return self.loops.leaves(self.inner.start_sum(x))


def group_of_next_block(seat: Seat) -> Group:
    """Return the group of a learner's next block at a seat: the seat's own at first, then groups like it.

    Each block begins with unused counters, messages and claims. All learners have equally many blocks. A late learner
    enters the first one.
    """
    world = seat.group
    if seat.late or world.count(f"blocks of {world.rank}", 1) == 1:
        return world
    twin = world.split([range(world.size)])
    assert twin is not None
    return twin
