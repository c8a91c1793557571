"""Groups of learners that exchange flat vectors. Every world implements them; every strategy uses them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from murmur.core.flat import is_finite
from murmur.core.membership import Membership, RunOver


class PeerLost(RuntimeError):
    """A learner needed by another one is gone; `learner` is its position in the world, where known."""

    def __init__(self, message: str, learner: int | None = None) -> None:
        super().__init__(message)
        self.learner = learner


class WorldMismatch(RuntimeError):
    """Learners differ in something that they must agree on (size, strategy, version)."""


class Message(NamedTuple):
    """A vector that has arrived, the rank of its sender, and the numbers sent with it (the header)."""

    x: Tensor
    source: int
    header: tuple[float, ...] = ()


def weighted_mean(xs: Sequence[Tensor], weights: Sequence[float], out: Tensor | None = None) -> Tensor:
    """Return sum_i w_i x_i / sum_i w_i, added in the given order; with equal weights exactly sum_i x_i / L.

    Vectors of weight 0 are left out, whatever they hold. A single contribution is returned as a copy, to the bit. The
    result is a new vector, or `out` if it is given, which is none of them.

    Raises:
        ValueError: No weight is positive.
    """
    pairs = [(x, w) for x, w in zip(xs, weights, strict=True) if w > 0]
    if not pairs:
        raise ValueError("a mean needs at least one positive weight")
    if len(pairs) == 1:
        return pairs[0][0].clone() if out is None else out.copy_(pairs[0][0])
    equal = len({w for _, w in pairs}) == 1
    (first, w), (second, v), *others = pairs
    total = first if equal else torch.mul(first, w, out=out)
    total = torch.add(total, second, alpha=1.0 if equal else v, out=out)
    for x, w in others:
        total.add_(x, alpha=1.0 if equal else w)
    return total.div_(len(pairs) if equal else sum(w for _, w in pairs))


def check_alike(xs: list[Tensor], group: str) -> list[Tensor]:
    """Return the vectors of one collective; raise `WorldMismatch` if their shapes or types differ."""
    if len({(tuple(x.shape), x.dtype) for x in xs}) > 1:
        given = ", ".join(f"learner {rank}: {tuple(x.shape)} {x.dtype}" for rank, x in enumerate(xs))
        raise WorldMismatch(
            f"the members of {group} passed vectors that differ ({given}): do all train the same model?"
        )
    return xs


def share_of(x: Tensor, weight: float) -> float:
    """Weight of x in a mean: 0 if x is not finite, so that non-finite values do not spread.

    Raises:
        ValueError: The weight is negative or not finite.
    """
    if weight != 0 and not is_finite(x):
        return 0.0
    if not 0 <= weight < float("inf"):
        raise ValueError(f"the weight of a mean must be finite and not negative, got {weight}")
    return float(weight)


class SumInPlace(Protocol):
    """Sums of vectors that members write into memory that all of them share."""

    def next(self) -> Tensor:
        """Return this member's vector of the next sum. All members fill theirs, then meet (`share_numbers`)."""

    def total(self, divisor: float) -> Tensor:
        """Return the sum of all vectors, divided by a number; it is valid until the next one."""


class Group(ABC):
    """`size` learners, this one at position `rank`.

    All learners of a group call its collective verbs (mean, broadcast, split) in the same order. A verb that has to
    wait is awaited; the others return at once.

    Attributes:
        rank: Position of this learner in the group, 0 <= rank < size.
        size: Number of learners.
        name: Unique name of the group, the same on every member.
        total_weight: Sum of the weights of the latest mean; 0 means that no member had samples, and all stop.
        tolerates_loss: True if the group detects lost members, and `among` forms a group of the remaining ones.
        regrouped: Number of times that the group was formed anew, with other members or the same ones.
        adds_beside: True if `start_sum` may replace `mean`; False if means travel in a compressed format.
    """

    rank: int
    size: int
    name: str
    total_weight: float = float("inf")
    tolerates_loss: bool = False
    regrouped: int = 0
    adds_beside: bool = True

    @abstractmethod
    async def share_numbers(self, x: Tensor, numbers: Sequence[float]) -> list[tuple[float, ...]]:
        """Share a few numbers before a mean; return those of all members, by rank.

        Raises:
            WorldMismatch: Members passed vectors of different lengths.
            PeerLost: A member is gone.
        """

    @abstractmethod
    async def mean_with(self, x: Tensor, weights: Sequence[float]) -> Tensor:
        """Return sum_i weights_i x_i / sum_i weights_i, with weights that all members know from `share_numbers`.

        At least one weight is positive; x is not changed.
        """

    @abstractmethod
    def post(self, x: Tensor, to: int, tag: str = "", header: Sequence[float] = ()) -> None:
        """Send a copy of vector x, and a few numbers, to member `to` under a tag. Never waits, never fails."""

    def as_sent(self, x: Tensor) -> Tensor:
        """Return x as the others receive it: x itself, unless this group compresses messages."""
        return x

    def declare_sections(self, lengths: Sequence[int], numbers: int) -> None:  # noqa: B027 - nothing to do uncompressed
        """Compress sections of these lengths apart in vectors made of them, and the `numbers` after them not at all.

        All members declare the same before the first such vector.
        """

    @property
    def live(self) -> tuple[int, ...]:
        """Ranks of the members that take part in collectives: all, unless the group tolerates loss."""
        return tuple(range(self.size))

    def among(self, ranks: Sequence[int], name: str) -> Group:
        """Form a group of some members. All of them call it with this name; unlike `split`, no other member does.

        Raises:
            PeerLost: This group cannot go on without a member.
        """
        raise PeerLost(f"{self.name} cannot go on with {list(ranks)} alone as {name}")

    async def welcome(self) -> None:  # noqa: B027 - most groups admit no learner
        """Admit late learners between two rounds, right after an average, if the group supports it."""

    async def meet(self, barrier: str) -> None:  # noqa: ARG002 - a barrier needs a name only where learners can be lost
        """Wait until all members have arrived at a barrier."""
        await self.mean(torch.zeros(1))

    def close(self) -> None:  # noqa: B027 - where no member can be lost there is nothing to close
        """Leave all further collectives; members that wait for this one are told."""

    @property
    def plain(self) -> Group:
        """This group without compression, for vectors that need full precision."""
        return self

    @abstractmethod
    async def recv(self, source: int | None = None, tag: str = "") -> Message:
        """Wait for the next vector posted here under `tag`, from `source` or from any member.

        Raises:
            PeerLost: The sender is gone.
        """

    @abstractmethod
    async def poll(self, tag: str, seconds: float) -> Message | None:
        """Return the next vector posted here under `tag` by any member, or None if none arrives within `seconds`.

        Infinite seconds wait for ever. The loss of a member does not end the wait; ask `membership` for it.
        """

    @property
    @abstractmethod
    def membership(self) -> Membership:
        """This member's client of the group's membership table."""

    @abstractmethod
    async def broadcast(self, x: Tensor, root: int = 0) -> Tensor:
        """Return the vector of member `root`; all members pass vectors of one shape."""

    @abstractmethod
    def split(self, parts: Sequence[Sequence[int]]) -> Group | None:
        """Form groups from disjoint lists of ranks, the same on every member; None for a member of no part."""

    def twin(self) -> Group:
        """Form a group of the same members, whose exchanges overlap those of this one."""
        twin = self.split([range(self.size)])
        assert twin is not None
        return twin

    @abstractmethod
    def count(self, counter: str, amount: int = 0) -> int:
        """Add to a counter shared by the members and return its new value; an unused counter is 0."""

    def count_ahead(self, counter: str, amount: int) -> int:
        """Add to a counter without waiting; return its value as last heard, plus what this member has added since.

        All additions of a member to the counter are made by this method.
        """
        return self.count(counter, amount)

    @abstractmethod
    def start_sum(self, x: Tensor) -> Awaitable[Tensor]:
        """Begin to add up the members' vectors in place, and return at once; await the result.

        x must not be touched before that. All members start sums in the same order. This is the raw verb for
        averaging behind a backward pass; strategies use `mean`.
        """

    def post_room(self, numel: int, dtype: torch.dtype) -> Tensor | None:  # noqa: ARG002 - few worlds share memory
        """Return memory for a vector that is posted and not changed afterwards, which is then not copied; or None.

        Its receivers only read it.
        """
        return None

    def room(self, numel: int, dtype: torch.dtype) -> Tensor | None:  # noqa: ARG002 - few worlds share memory
        """Return memory for this member's vector of the next mean, which then copies no vector; None: there is none.

        A mean leaves the vector as it is until the next one.
        """
        return None

    def keep(self, mean: Tensor) -> Callable[[], Tensor]:
        """Return a function that gives the mean just ended once more, until the next one, whatever becomes of it."""
        kept = mean.clone()
        return lambda: kept

    def sum_in_place(self, like: Tensor) -> SumInPlace | None:  # noqa: ARG002 - few worlds have one
        """Return sums of vectors like this one without messages, where the members share memory; else None.

        All members call it together.
        """
        return None

    def start_broadcast(self, x: Tensor, root: int, tag: str) -> Awaitable[Tensor]:
        """Begin to send the vector of member `root` to all members, and return at once; await it.

        All members begin the broadcasts of a tag in the same order, and meet in a mean or sum between any two of them.
        The root leaves its x as it is, and the others only read the vector, until the meeting after the next broadcast
        of this tag.

        Args:
            x: The root's vector; elsewhere a vector of its shape and type, which may be overwritten.
            root: Rank of the sender.
            tag: Name of the sequence of broadcasts.
        """
        name = f"broadcast {tag}"
        if self.rank == root:
            for member in range(self.size):
                if member != root:
                    self.post(x, member, name)
        return Incoming(self, root, name, x if self.rank == root else None)

    async def mean(self, x: Tensor, weight: float = 1.0) -> Tensor:
        """Return the weighted mean over the members, sum_i w_i x_i / sum_i w_i, as a new vector.

        A member of weight 0 takes part without being counted. So does one whose vector is not finite; it gets the mean
        of the others. If all weights are 0, every member gets its own x back and sees `total_weight == 0` in the same
        round.

        Raises:
            ValueError: The weight is negative or infinite.
            WorldMismatch: Members passed vectors of different lengths.
        """
        return await self._mean(x, weight, self.mean_with)

    async def mean_behind(self, x: Tensor, weight: float) -> Tensor:
        """Return the weighted mean of gradients, as `mean` does; worlds that model time let it begin behind backward.

        Only where `adds_beside` is true. Worlds in which time really passes sum buckets by `start_sum` instead.
        """
        return await self._mean(x, weight, self.mean_with_behind)

    async def mean_with_behind(self, x: Tensor, weights: Sequence[float]) -> Tensor:
        """Return what `mean_with` returns, for gradients whose backward pass has just ended."""
        return await self.mean_with(x, weights)

    async def _mean(
        self, x: Tensor, weight: float, exchange: Callable[[Tensor, Sequence[float]], Awaitable[Tensor]]
    ) -> Tensor:
        weights = [said[0] for said in await self.share_numbers(x, (share_of(x, weight),))]
        self.total_weight = sum(weights)
        if self.total_weight == 0 or self.size == 1:
            return x.clone()
        return await exchange(x, weights)

    async def mix(self, x: Tensor, row: Mapping[int, float]) -> Tensor:
        """Mix with neighbours: return sum_j T_ij x_j for row i of a symmetric T, as a new vector.

        Computed as x_i + sum_j T_ij (x_j - x_i): equal vectors stay equal to the bit, and i and j add opposite terms.
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


class Incoming:
    """The vector of a broadcast by messages under a tag; awaiting it waits for its arrival, but on the sender."""

    def __init__(self, group: Group, root: int, tag: str, x: Tensor | None) -> None:
        self._group, self._root, self._tag, self._x = group, root, tag, x

    def __await__(self) -> Generator[Any, None, Tensor]:
        if self._x is None:
            message = yield from self._group.recv(self._root, self._tag).__await__()
            self._x = message.x
        return self._x


class GroupAround(Group):
    """Group that forwards all verbs to `inner`: a base for groups that change one of them."""

    def __init__(self, inner: Group) -> None:
        self.inner = inner
        self.rank, self.size, self.name = inner.rank, inner.size, inner.name
        self.adds_beside = inner.adds_beside

    async def share_numbers(self, x: Tensor, numbers: Sequence[float]) -> list[tuple[float, ...]]:
        return await self.inner.share_numbers(x, numbers)

    async def mean_with(self, x: Tensor, weights: Sequence[float]) -> Tensor:
        return await self.inner.mean_with(x, weights)

    async def mean_with_behind(self, x: Tensor, weights: Sequence[float]) -> Tensor:
        return await self.inner.mean_with_behind(x, weights)

    def post(self, x: Tensor, to: int, tag: str = "", header: Sequence[float] = ()) -> None:
        self.inner.post(x, to, tag, header)

    def as_sent(self, x: Tensor) -> Tensor:
        return self.inner.as_sent(x)

    def declare_sections(self, lengths: Sequence[int], numbers: int) -> None:
        self.inner.declare_sections(lengths, numbers)

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

    def among(self, ranks: Sequence[int], name: str) -> Group:
        return self.inner.among(ranks, name)

    def close(self) -> None:
        self.inner.close()

    def count(self, counter: str, amount: int = 0) -> int:
        return self.inner.count(counter, amount)

    def count_ahead(self, counter: str, amount: int) -> int:
        return self.inner.count_ahead(counter, amount)

    def start_broadcast(self, x: Tensor, root: int, tag: str) -> Awaitable[Tensor]:
        return self.inner.start_broadcast(x, root, tag)

    def start_sum(self, x: Tensor) -> Awaitable[Tensor]:
        return self.inner.start_sum(x)

    def sum_in_place(self, like: Tensor) -> SumInPlace | None:
        return self.inner.sum_in_place(like)


class Barrier:
    """A barrier at the end of a run, which a learner may come to after the others have passed it without it.

    A learner that falls silent for longer than its lease (a suspended process) counts as lost, and the others go on.
    When it comes back it is live again, and they wait for it at their next barrier. At one that they have passed they
    answer no more messages, so that it must not wait for them there. A group uses a name once.
    """

    def __init__(self, group: Group, name: str) -> None:
        self.name, self._group, self._passes = name, group, f"passed {name}"
        self._came_as: int | None = None  # incarnation of this learner when it came to the barrier
        self._missed = self._came = False

    def missed(self) -> bool:
        """Return True if another learner had passed the barrier when this one came to it, or came back to it."""
        view = self._group.membership.view(fresh=not self._came)
        incarnation = view.incarnations.get(self._group.rank)
        if not self._came or incarnation != self._came_as:
            self._came, self._came_as = True, incarnation
            self._missed = self._group.count(self._passes) > 0
        return self._missed

    def check(self) -> None:
        """Raise `RunOver` if this learner has missed the barrier."""
        if self.missed():
            raise RunOver

    def arrive(self) -> bool:
        """Arrive; return True if all live learners have, or if one has passed. Call it until it returns True."""
        all_have = self._group.membership.arrive(self.name)
        # A learner that has passed, was counted as lost and is live again does not arrive a second time.
        return self._group.count(self._passes, int(all_have)) > 0
