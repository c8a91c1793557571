"""A set of learners that exchange flat vectors; every world implements it, every strategy speaks it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from murmur.core.flat import is_finite
from murmur.core.membership import Membership


class PeerLost(RuntimeError):
    """A learner that somebody waits for is gone; `learner` is its position in the world where that is known."""

    def __init__(self, message: str, learner: int | None = None) -> None:
        super().__init__(message)
        self.learner = learner


class WorldMismatch(RuntimeError):
    """Learners that should agree (sizes, strategies, versions) do not."""


class Message(NamedTuple):
    """A vector that has arrived, the rank of the member that posted it, and the numbers that it wrote beside it."""

    x: Tensor
    source: int
    header: tuple[float, ...] = ()


def weighted_mean(xs: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """sum_i w_i x_i / sum_i w_i, added up in the order given; with equal weights exactly sum_i x_i / L.

    Learners of weight 0 are left out, whatever their vectors hold. One contributor is returned as a copy, to the bit.

    Raises:
        ValueError: no weight is positive.
    """
    pairs = [(x, w) for x, w in zip(xs, weights, strict=True) if w > 0]
    if not pairs:
        raise ValueError("a mean needs at least one positive weight")
    if len(pairs) == 1:
        return pairs[0][0].clone()
    equal = len({w for _, w in pairs}) == 1
    total = torch.zeros_like(pairs[0][0])
    for x, w in pairs:
        total.add_(x, alpha=1.0 if equal else w)
    return total.div_(len(pairs) if equal else sum(w for _, w in pairs))


def check_alike(xs: list[Tensor], group: str) -> list[Tensor]:
    """The vectors of one collective, which must all have one shape and type.

    Raises:
        WorldMismatch: they differ; says who gave what.
    """
    if len({(tuple(x.shape), x.dtype) for x in xs}) > 1:
        given = ", ".join(f"learner {rank}: {tuple(x.shape)} {x.dtype}" for rank, x in enumerate(xs))
        raise WorldMismatch(f"the members of {group} gave vectors that differ ({given}): do all train the same model?")
    return xs


def check_weight(weight: float) -> float:
    """The weight of a contribution to a mean: finite and not negative."""
    if not 0 <= weight < float("inf"):
        raise ValueError(f"the weight of a mean must be finite and not negative, got {weight}")
    return float(weight)


def share_of(x: Tensor, weight: float) -> float:
    """The weight with which x takes part in a mean: 0 if it is not finite, so that no number that is none spreads."""
    return check_weight(weight) if weight == 0 or is_finite(x) else 0.0


class Group(ABC):
    """`size` learners, this one at position `rank`.

    All learners of a group call its collective verbs (mean, broadcast, split) in the same order. A verb that has to
    wait is awaited; the others return at once.

    Attributes:
        rank: this learner's position in the group, 0 <= rank < size.
        size: number of learners.
        name: unique name of the group, the same on every member.
        total_weight: sum of the weights of the latest mean; 0 means that nobody had anything, and everybody stops.
        outlives: whether deaths of members are noticed, and `among` forms a group of those that are left.
        regrouped: how often those that take part have become others, or the same ones anew.
        adds_beside: whether `start_sum` may stand for `mean`; not where means travel in a format of their own.
    """

    rank: int
    size: int
    name: str
    total_weight: float = float("inf")
    tolerates_loss: bool = False
    regrouped: int = 0
    adds_beside: bool = True

    @abstractmethod
    async def _words(self, x: Tensor, words: Sequence[float]) -> list[tuple[float, ...]]:
        """What all members say before a mean, in order of rank; checks that their vectors are alike."""

    @abstractmethod
    async def _mean(self, x: Tensor, weights: Sequence[float]) -> Tensor:
        """sum_i weights_i x_i / sum_i weights_i; at least one weight is positive; x is not changed."""

    @abstractmethod
    def post(self, x: Tensor, to: int, tag: str = "", header: Sequence[float] = ()) -> None:
        """Send a copy of vector x, and a few numbers, to member `to` under a tag. Never waits, never fails."""

    def as_sent(self, x: Tensor) -> Tensor:
        """What the others get when x is posted: x itself, unless this group sends in a format of fewer bytes."""
        return x

    @property
    def live(self) -> tuple[int, ...]:
        """Ranks of the members that take part in collectives: all, unless the group goes on without the lost."""
        return tuple(range(self.size))

    def among(self, ranks: Sequence[int], name: str) -> Group:
        """A group of some members, who all ask for it under this name; unlike in `split` nobody else takes part.

        Raises:
            PeerLost: this group cannot go on without a member.
        """
        raise PeerLost(f"{self.name} cannot go on with {list(ranks)} alone as {name}")

    async def welcome(self) -> None:  # noqa: B027 - most groups let nobody in
        """Between two rounds, where nothing local is un-averaged: let in who came late, where the group can."""

    async def meet(self, barrier: str) -> None:  # noqa: ARG002 - a stage needs a name only where learners can be lost
        """Wait until all members have come to a stage of their program."""
        await self.mean(torch.zeros(1))

    def close(self) -> None:  # noqa: B027 - where no member can be lost there is nothing to close
        """This member takes part in no collective any more: whoever waits for it is told."""

    @property
    def plain(self) -> Group:
        """This group without a format of its own: for what must arrive in full precision."""
        return self

    @abstractmethod
    async def recv(self, source: int | None = None, tag: str = "") -> Message:
        """The next vector posted here under `tag`, from `source` or from anyone; waits for it.

        Raises:
            PeerLost: the one who should send it is gone.
        """

    @abstractmethod
    async def poll(self, tag: str, seconds: float) -> Message | None:
        """The next vector posted here under `tag` by anyone, or None if none has come after so many seconds.

        Infinite seconds wait for ever. The death of a member does not end the waiting: `membership` knows of it.
        """

    @property
    @abstractmethod
    def membership(self) -> Membership:
        """This member's line to the register of the group."""

    @abstractmethod
    async def broadcast(self, x: Tensor, root: int = 0) -> Tensor:
        """The vector of member `root`; all give vectors of one shape."""

    @abstractmethod
    def split(self, parts: Sequence[Sequence[int]]) -> Group | None:
        """New groups from disjoint lists of ranks, the same on every member; None for a member of no part."""

    @abstractmethod
    def count(self, counter: str, amount: int = 0) -> int:
        """Add to a counter shared by the members and return its new value; one that was never used is 0."""

    @abstractmethod
    def start_sum(self, x: Tensor) -> Awaitable[Tensor]:
        """Begin to add the members' vectors up, in place, and return at once; await the result.

        x must not be touched before that. Sums are started in the same order by all. This is the raw verb below
        averaging behind a backward pass; strategies use `mean`.
        """

    async def mean(self, x: Tensor, weight: float = 1.0) -> Tensor:
        """Weighted mean over the members: sum_i w_i x_i / sum_i w_i, a new vector.

        Weight 0 takes part without being counted, and so does a vector that is not finite: its member gets the mean
        of the others. If all weights are 0 every member gets its own x back and sees `total_weight == 0` in the same
        round.

        Raises:
            ValueError: negative or infinite weight.
            WorldMismatch: members gave vectors of different lengths.
        """
        weights = [said[0] for said in await self._words(x, (share_of(x, weight),))]
        self.total_weight = sum(weights)
        if self.total_weight == 0 or self.size == 1:
            return x.clone()
        return await self._mean(x, weights)

    async def mix(self, x: Tensor, row: Mapping[int, float]) -> Tensor:
        """Synchronous mixing with neighbours: sum_j T_ij x_j for row i of a symmetric T; a new vector.

        In the form x_i + sum_j T_ij (x_j - x_i): equal vectors stay equal to the bit, and what i adds j takes away.
        All members call it equally often, each with its own row of the same matrix. A vector that is not finite is not
        sent; its member gets the mean of its neighbours'.
        """
        peers = sorted(j for j in row if j != self.rank)
        finite = is_finite(x)
        for j in peers:
            self.post(x if finite else x[:0], j, "mix")
        mixed, sent = x.clone(), self.as_sent(x)
        got = {j: (await self.recv(j, "mix")).x.to(x.device) for j in peers}
        got = {j: theirs for j, theirs in got.items() if theirs.numel() == x.numel()}
        if not finite:
            return weighted_mean(list(got.values()), [row[j] for j in got]) if got else mixed
        for j, theirs in got.items():
            mixed.add_(theirs - sent, alpha=row[j])
        return mixed


class GroupAround(Group):
    """The learners of `inner`, and all its verbs: a base for groups that do one of them in another way."""

    def __init__(self, inner: Group) -> None:
        self.inner = inner
        self.rank, self.size, self.name = inner.rank, inner.size, inner.name
        self.adds_beside = inner.adds_beside

    async def _words(self, x: Tensor, words: Sequence[float]) -> list[tuple[float, ...]]:
        return await self.inner._words(x, words)

    async def _mean(self, x: Tensor, weights: Sequence[float]) -> Tensor:
        return await self.inner._mean(x, weights)

    def post(self, x: Tensor, to: int, tag: str = "", header: Sequence[float] = ()) -> None:
        self.inner.post(x, to, tag, header)

    def as_sent(self, x: Tensor) -> Tensor:
        return self.inner.as_sent(x)

    @property
    def plain(self) -> Group:
        return self if self.inner.plain is self.inner else self.inner.plain

    async def recv(self, source: int | None = None, tag: str = "") -> Message:
        return await self.inner.recv(source, tag)

    async def poll(self, tag: str, seconds: float) -> Message | None:
        return await self.inner.poll(tag, seconds)

    @property
    def membership(self) -> Membership:
        return self.inner.membership

    async def broadcast(self, x: Tensor, root: int = 0) -> Tensor:
        return await self.inner.broadcast(x, root)

    def count(self, counter: str, amount: int = 0) -> int:
        return self.inner.count(counter, amount)

    def start_sum(self, x: Tensor) -> Awaitable[Tensor]:
        return self.inner.start_sum(x)
