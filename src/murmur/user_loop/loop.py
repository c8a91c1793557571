"""A user's loop as seen by a strategy: suspended until the next step is offered, or the loop is over.

The strategy's coroutine runs in the thread of the loop, piece by piece: it stops when it needs a minibatch, and goes on
when the loop calls `step()`. The loop's settings of autograd, autocast and streams, which belong to a thread, therefore
stay in effect. Between the pieces, while the loop computes, the model keeps its weights whatever averaging does.

The engine's learners claim minibatches of one corpus. Here each learner claims the next minibatch of its own loop. The
budget is spent when the loops of all live learners are over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from murmur.core.flat import Layout
from murmur.core.group import Group, GroupAround, PeerLost
from murmur.core.membership import Membership, RunOver, Shares, View
from murmur.core.torch_private import version_of
from murmur.core.trace import COMPUTE, LOOP
from murmur.core.weights import Weights
from murmur.core.world import Seat, wait_here
from murmur.elastic.rendezvous import LeftBehind

T = TypeVar("T")


@dataclass(frozen=True)
class Offer:
    """One step of the loop, with its gradients in the model's .grad fields.

    Attributes:
        samples: Samples of which the gradients are the mean.
        loss: Loss per sample; None if not given.
        scale: Factor of a loss scaler, by which the gradients have to be divided.
        skipped: True if the gradients are not finite and do not count.
    """

    samples: float
    loss: float | None
    scale: float = 1.0
    skipped: bool = False


class Loop:
    """State of the loop.

    Attributes:
        offer: Step that the strategy has not taken yet.
        over: True if the loop has ended.
        weights: Live weights at which the present gradient is taken.
        group: Group in which the strategy uses them.
        began: Seconds of the world, and of the processor in this thread, at which the loop began to compute; None while
            the strategy works.
        before_backward: Called with the samples of a step before its last backward pass, to overlap sums with it; None
            if the strategy does not average gradients.
    """

    def __init__(self, weights: Weights, group: Group) -> None:
        self.offer: Offer | None = None
        self.over = False
        self.began: tuple[float, float] | None = None
        self.weights, self.group = weights, group
        self.before_backward: Callable[[float], None] | None = None

    def take(self) -> Offer | None:
        offer, self.offer = self.offer, None
        return offer


class _Suspended:
    def __await__(self) -> Generator[None, None, None]:
        yield


class LoopSeat(Seat):
    """A seat with gradients from a loop; all other methods are those of the inner seat."""

    def __init__(self, inner: Seat, group: Group, loop: Loop) -> None:
        self.inner, self.group, self.loop = inner, group, loop
        self.trace, self.device, self.late = inner.trace, inner.device, inner.late

    async def ready(
        self, weights: Weights, group: Group, before_backward: Callable[[float], None] | None = None
    ) -> float:
        self.loop.weights, self.loop.group, self.loop.before_backward = weights, group, before_backward
        began = self.now
        while self.loop.offer is None and not self.loop.over:
            self.resume()
            with weights.held():
                await _Suspended()
        self.pause()
        return self.now - began

    def resume(self) -> None:
        if self.loop.began is None:
            self.loop.began = self.now, time.thread_time()

    def pause(self) -> None:
        if self.loop.began is not None:
            began, processor = self.loop.began
            self.trace.add(COMPUTE, began, self.now, LOOP)
            self.inner.loop_computed(time.thread_time() - processor)
            self.loop.began = None

    def holds(self, weights: Weights) -> None:
        self.inner.holds(weights)

    @property
    def now(self) -> float:
        return self.inner.now

    def begin(self) -> None:
        self.inner.begin()

    async def work(self, job: Callable[[], T]) -> T:
        if self.loop.offer is None and not self.inner.works_beside:
            return job()  # a loop that is over takes no modelled time
        return await self.inner.work(job)

    async def sleep(self, seconds: float) -> None:
        await self.inner.sleep(seconds)

    def spawn(self, activity: Coroutine[Any, Any, T], what: str) -> Awaitable[T]:
        return self.inner.spawn(activity, what)

    def exclusive(self) -> AbstractContextManager[object]:
        return self.inner.exclusive()

    @property
    def overlaps(self) -> bool:
        return self.inner.overlaps


@contextmanager
def telling_who_is_lost(rank: int) -> Iterator[None]:
    """Context of what a learner does with the others: the loss of the store, or of this learner, becomes `PeerLost`."""
    try:
        yield
    except ConnectionError as error:
        raise PeerLost(f"learner {rank}: {error}: without the store this learner cannot go on") from error
    except (RunOver, LeftBehind) as error:
        told = "it was stopped, or could not be reached, for longer than its lease (Plan.lease_seconds)"
        raise PeerLost(f"learner {rank}: {error}: {told}", rank) from error


def advance(coroutine: Coroutine[Any, Any, None]) -> bool:
    """Let a coroutine go on to the next minibatch that it needs; return True if it has ended instead."""
    try:
        while (awaited := coroutine.send(None)) is not None:
            wait_here(coroutine, awaited)
    except StopIteration:
        return True
    return False


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
        self._begun = False
        self._leaving: list[Leaving] = []

    def leaves(self, under_way: Awaitable[Tensor]) -> Leaving:
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

    @property
    def over_here(self) -> bool:
        """True if the loop of this learner is over, which no other learner announces.

        An earlier process of this learner may have: the counter is asked once.
        """
        if not self._begun:
            self._begun = True
            return self.over([self.world.rank])
        return self.world.rank in self._over

    def over(self, learners: Sequence[int]) -> bool:
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
        loops, learners = self.group.loops, self.group.super_learner_of(self.group.rank)
        if loops.over(learners) if len(learners) > 1 else loops.over_here:
            return None
        end = first + self.group.count_ahead("claims", size + loops.claims_before)
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
        others = [rank for rank in self.inner.view().live if rank != self.group.rank]
        return bool(others) and all(self.group.over_for(rank) for rank in others)

    def arrive(self, barrier: str) -> bool:
        return self.inner.arrive(barrier)

    def leave(self) -> None:
        self.inner.leave()


class JoinedGroup(GroupAround):
    """The learners of `inner`; `members` are their ranks in the group of all learners."""

    def __init__(self, inner: Group, loops: Loops, members: Sequence[int]) -> None:
        super().__init__(inner)
        self.loops, self.members = loops, list(members)
        self.tolerates_loss = inner.tolerates_loss
        self._membership: LoopMembership | None = None

    def over_for(self, rank: int) -> bool:
        """True if a member has no more minibatches; a leader answers for all members of its super-learner.

        Members ask it for themselves too, because a leader goes on while its super-learner has any minibatch.
        """
        return self.loops.over(self.super_learner_of(rank))

    def super_learner_of(self, rank: int) -> range:
        """Return the learners that a member represents: all ranks before the next member; an added one itself."""
        if rank >= len(self.members):
            return range(rank, rank + 1)
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

    def post_room(self, numel: int, dtype: torch.dtype) -> Tensor | None:
        return self.inner.post_room(numel, dtype)

    def room(self, numel: int, dtype: torch.dtype) -> Tensor | None:
        return self.inner.room(numel, dtype)

    def keep(self, mean: Tensor) -> Callable[[], Tensor]:
        return self.inner.keep(mean)

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
    return world.twin()


class Behind:
    """State of a step's last backward pass, beside which averaging runs; its `samples` are None before it is announced.

    A loop that accumulates has several backward passes per step, and only the loop knows the last one. In that one a
    bucket of the gradient is sent as soon as it is complete, and must not be changed then. Gradients that are absent,
    or came in an earlier pass, are sent in step(), in the same order on all learners.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.samples: float | None = None
        self._left: list[tuple[Tensor, Tensor, int]] = []  # tensor, its gradient, version of the gradient when sent

    @contextmanager
    def last(self, samples: float, start: Callable[[float], None] | None) -> Iterator[None]:
        if self.samples is not None:
            raise RuntimeError(
                "last_backward was used twice in one step: use it for the last backward pass only, and call step() then"
            )
        self.samples = samples
        try:
            if start is not None:
                start(samples)
            yield
        except BaseException:
            self.samples = None  # the loop may take another minibatch in its place
            if start is not None:
                start(math.nan)
            raise
        if start is not None:
            self._left = [(t, t.grad, version_of(t.grad)) for t in self.layout.tensors if t.grad is not None]

    def told(self, samples: float | None) -> float:
        if self.samples is not None and samples not in (None, self.samples):
            raise ValueError(
                f"last_backward got {self.samples:g} samples, step {samples:g}, after the gradients had been sent with"
                f" the former: call last_backward(samples={samples:g}), and step() without samples"
            )
        return next((told for told in (self.samples, samples) if told is not None), 1.0)

    def check(self, scaled: bool) -> None:
        if self.samples is not None and scaled:
            raise RuntimeError(
                "a loss scaler finds overflows only after the backward pass, when gradients have been sent: do not use"
                " last_backward with a GradScaler"
            )
        if any(t.grad is not g or version_of(g) != version for t, g, version in self._left):
            raise RuntimeError(
                "gradients were changed after last_backward, when they had already been sent: do not use it if you"
                " clip them, or if another backward pass follows"
            )

    def take(self) -> bool:
        begun, self.samples, self._left = self.samples is not None, None, []
        return begun
