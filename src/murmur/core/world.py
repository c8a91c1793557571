"""What can run a strategy: a world seats learners, lets time pass for them, and runs what they do beside training."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from murmur.core.group import Group
from murmur.core.trace import Trace
from murmur.core.weights import Weights

T = TypeVar("T")
Program = Callable[["Seat"], Coroutine[Any, Any, T]]


class Seat(ABC):
    """A learner's place in a world.

    Attributes:
        group: all learners of the world.
        trace: where this learner's seconds go.
        device: where its model lives, "cpu" or "cuda:0".
        waits: whether it waits, at its end, for all others (a member of a node ends with its leader's word).
        late: whether the others have begun without it (it was started again, or added).
    """

    group: Group
    trace: Trace
    device: str = "cpu"
    late: bool = False
    waits: bool = True

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds since the world began, virtual or wall."""

    async def ready(  # noqa: B027 - most seats have nothing to wait for
        self, weights: Weights, group: Group, before_backward: Callable[[float], None] | None = None
    ) -> None:
        """Wait until it is known whether this learner, which holds `weights` in `group`, has another minibatch.

        Only where somebody else's loop hands the gradients in is there anything to wait for. That loop may tell
        `before_backward` the number of samples by itself, before the backward pass that they are the gradient of.
        """

    def begin(self) -> None:  # noqa: B027 - only a launcher that starts learners again has to know
        """This learner holds the model and computes its first gradient: the launch has come through its start."""

    @abstractmethod
    async def work(self, job: Callable[[], T]) -> T:
        """Run one gradient's computation and let its time pass. Failures of spawned activities surface here."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Let so many seconds pass."""

    @abstractmethod
    def spawn(self, activity: Coroutine[Any, Any, T], what: str) -> Awaitable[T]:
        """Start an activity of this learner beside the present one; await the answer for its value."""

    def exclusive(self) -> AbstractContextManager[object]:
        """Inside, torch's random generator, which belongs to the process, is this learner's alone. No await inside."""
        return nullcontext()

    def host_of(self, learner: int) -> str:  # noqa: ARG002 - where all run in one place
        """The host on which a learner of the world runs; empty: here."""
        return ""

    def sending(self) -> tuple[float, float]:
        """Seconds a byte takes on the fastest connection, and all sent since the last call; nan: not known."""
        return math.nan, math.nan

    @property
    def works_beside(self) -> bool:
        """Whether seconds pass here as outside, so that a thread beside training saves some."""
        return False

    @property
    def overlaps(self) -> bool:
        """Whether sums started by `Group.start_sum` move while this learner computes."""
        return False


class World(Protocol):
    """A set of learners, of which this process may hold all (virtual, threads) or one (torch)."""

    @property
    def size(self) -> int:
        """Number of learners in the whole world."""

    def run(self, program: Program[T]) -> list[T]:
        """Run the program at every seat of this process; the values in order of rank.

        Raises:
            PeerLost: a learner that others wait for is gone.
            Exception: whatever the program raised, once every local learner has ended.
        """


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end where every await blocks instead of suspending (the worlds with real seconds)."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coroutine.close()
    raise RuntimeError(
        f"{coroutine!r} awaited something that is not murmur's: outside the virtual world an await must"
        " block, so await only what a Learner or a Group gives"
    )
