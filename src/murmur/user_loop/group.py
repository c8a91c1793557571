"""A group of learners whose minibatches are their own: nobody knows their number, everybody tells when it has no more.

Where the engine's learners claim minibatches of one corpus, each of these claims the next one of its own loop; the
budget is spent when the loops of all live learners are over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Sequence
from typing import Any

from torch import Tensor

from murmur.core.group import Group, GroupAround, PeerLost
from murmur.core.membership import Membership, View


class Leaving:
    """A sum under way; whoever keeps it does not keep the connections it runs on once it is done or given up."""

    def __init__(self, under_way: Awaitable[Tensor]) -> None:
        self.under_way: Awaitable[Tensor] | None = under_way

    def __await__(self) -> Generator[Any, None, Tensor]:
        if self.under_way is None:
            raise PeerLost("the sum was given up")
        total = yield from self.under_way.__await__()
        self.under_way = None
        return total


class Loops:
    """What the groups of a loop share: whose loops are over, told through counters; sums under way."""

    def __init__(self, world: Group) -> None:
        self.world = world
        self._over: set[int] = set()
        self._leaving: list[Leaving] = []

    def leaves(self, under_way: Awaitable[Tensor]) -> Leaving:
        """A sum has begun."""
        self._leaving = [leaving for leaving in self._leaving if leaving.under_way is not None]
        self._leaving.append(Leaving(under_way))
        return self._leaving[-1]

    def give_up(self) -> None:
        """No sum is waited for any more: the others learn that this learner is gone when its connections close."""
        for leaving in self._leaving:
            leaving.under_way = None

    def announce(self, learners: Sequence[int]) -> None:
        """The loops of these learners offer no more steps, or nobody asks for them."""
        for rank in learners:
            if rank not in self._over:
                self._over.add(rank)
                self.world.count(f"loop {rank} is over", 1)

    def over(self, learners: Sequence[int]) -> bool:
        """Whether the loops of all these learners are over."""
        for rank in learners:
            if rank not in self._over:
                if self.world.count(f"loop {rank} is over") == 0:
                    return False
                self._over.add(rank)
        return True


class LoopMembership(Membership):
    """The register of a group, with claims of minibatches from the learners' own loops."""

    def __init__(self, inner: Membership, group: JoinedGroup) -> None:
        self.inner, self.group = inner, group

    def view(self, fresh: bool = False) -> View:
        return self.inner.view(fresh)

    def claim(self, first: int, total: int, size: int = 1) -> range | None:  # noqa: ARG002 - loops end by themselves
        if self.group.over_for(self.group.rank):
            return None
        end = first + self.group.count("claims", size)
        return range(end - size, end)

    @property
    def complete(self) -> bool:
        return self.inner.complete

    @property
    def spent(self) -> bool:
        # Who asks this takes no more minibatches, of its node neither: they have come to an end, or it serves others.
        self.group.loops.announce(self.group.node_of(self.group.rank))
        return all(self.group.over_for(rank) for rank in self.inner.view().live)

    def arrive(self, barrier: str) -> bool:
        return self.inner.arrive(barrier)

    def leave(self) -> None:
        self.inner.leave()


class JoinedGroup(GroupAround):
    """The learners of `inner`; `members` are their ranks in the group of all."""

    def __init__(self, inner: Group, loops: Loops, members: Sequence[int]) -> None:
        super().__init__(inner)
        self.loops, self.members = loops, list(members)
        self._membership: LoopMembership | None = None

    def over_for(self, rank: int) -> bool:
        """Whether a member has no more minibatches; the leader of a node speaks for its members.

        Asked by members for themselves too, because a leader goes on while its node has anything to do.
        """
        return self.loops.over(self.node_of(rank))

    def node_of(self, rank: int) -> range:
        """The learners that a member speaks for: all that stand before the next member."""
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
