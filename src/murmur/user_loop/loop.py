"""A user's loop as seen by a strategy: suspended until the next step is offered, or the loop is over.

The strategy's coroutine runs in the thread of the loop, piece by piece: it stops when it needs a minibatch, and goes on
when the loop calls `step()`. The loop's settings of autograd, autocast and streams, which belong to a thread, therefore
stay in effect. Between the pieces, while the loop computes, the model keeps its weights whatever averaging does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from murmur.core.group import Group, PeerLost
from murmur.core.membership import RunOver
from murmur.core.weights import Weights
from murmur.core.world import Seat

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
        before_backward: Called with the samples of a step before its last backward pass, to overlap sums with it; None
            if the strategy does not average gradients.
    """

    def __init__(self, weights: Weights, group: Group) -> None:
        self.offer: Offer | None = None
        self.over = False
        self.weights, self.group = weights, group
        self.before_backward: Callable[[float], None] | None = None

    def take(self) -> Offer | None:
        """Take the offered step; it can be taken once."""
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
    ) -> None:
        self.loop.weights, self.loop.group, self.loop.before_backward = weights, group, before_backward
        while self.loop.offer is None and not self.loop.over:
            with weights.held():
                await _Suspended()

    @property
    def now(self) -> float:
        return self.inner.now

    def begin(self) -> None:
        self.inner.begin()

    async def work(self, job: Callable[[], T]) -> T:
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
    """Context of what a learner does with the others: the loss of the store, or of this learner, becomes `PeerLost`.

    Raises:
        PeerLost: The store is gone, or the others have gone on without this learner.
    """
    try:
        yield
    except ConnectionError as error:
        raise PeerLost(f"learner {rank}: {error}: without the store this learner cannot go on") from error
    except RunOver as error:
        told = "it was stopped, or could not be reached, for longer than its lease (Plan.lease_seconds)"
        raise PeerLost(f"learner {rank}: {error}: {told}", rank) from error


def advance(coroutine: Coroutine[Any, Any, None]) -> bool:
    """Let a coroutine go on to the next minibatch that it needs; return True if it has ended instead."""
    try:
        coroutine.send(None)
    except StopIteration:
        return True
    return False
