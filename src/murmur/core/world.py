"""Worlds run strategies: they give learners their seats, let time pass, and run activities beside training."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from torch import nn

from murmur.core.group import Group
from murmur.core.trace import Trace
from murmur.core.weights import Weights

T = TypeVar("T")
Program = Callable[["Seat"], Coroutine[Any, Any, T]]


class Seat(ABC):
    """A learner's place in a world.

    Attributes:
        group: All learners of the world.
        trace: Trace of this learner's time.
        device: Device of its model, "cpu" or "cuda:0".
        waits: True if it waits for all others at its end (a member of a super-learner ends with its leader).
        late: True if the others have begun without it (it was started again, or added).
        missed: True if the others had done every minibatch, so that it has not taken part in the end of the run.
    """

    group: Group
    trace: Trace
    device: str = "cpu"
    late: bool = False
    waits: bool = True
    missed: bool = False

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds since the world began, virtual or wall."""

    async def ready(
        self,
        weights: Weights,  # noqa: ARG002 - most seats have nothing to wait for
        group: Group,  # noqa: ARG002
        before_backward: Callable[[float], None] | None = None,  # noqa: ARG002
    ) -> float:
        """Wait until it is known if this learner, which holds `weights` in `group`, has another minibatch.

        There is nothing to wait for, except in a user loop, which supplies the gradients. That loop may call
        `before_backward` with the number of samples itself, before the backward pass of their gradient. Returns the
        seconds that the loop took for its gradient.
        """
        return 0.0

    def loop_computed(self, seconds: float) -> None:  # noqa: B027 - only a world that models time has to know
        """Report the processor's seconds that a user loop took between two steps."""

    def holds(self, weights: Weights) -> None:  # noqa: B027 - only a world that models time has to know
        """Report the weights of this learner, whose vector has the size of a whole message."""

    def begin(self) -> None:  # noqa: B027 - only a launcher that starts learners again has to know
        """Report that this learner holds the model and computes its first gradient: its start has succeeded."""

    @abstractmethod
    async def work(self, job: Callable[[], T]) -> T:
        """Run the computation of one gradient and let its time pass. Failures of spawned activities are raised here."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""

    @abstractmethod
    def spawn(self, activity: Coroutine[Any, Any, T], what: str) -> Awaitable[T]:
        """Start an activity of this learner beside the present one; await the result for its value."""

    def exclusive(self) -> AbstractContextManager[object]:
        """Reserve torch's random generator, shared by the process, for this learner. Do not await inside the block."""
        return nullcontext()

    def host_of(self, learner: int) -> str:  # noqa: ARG002 - all run on one host
        """Return the host of a learner of the world; empty for this host."""
        return ""

    def sending(self) -> tuple[float, float]:
        """Return seconds per byte on the fastest connection and bytes sent since the last call; nan if unknown."""
        return math.nan, math.nan

    def counted(self) -> Mapping[str, list[float]]:
        """Return what the world has counted so far, to be kept with checkpoints, so that a continued run counts on."""
        return {}

    @property
    def works_beside(self) -> bool:
        """True if time passes here in wall seconds, so that a thread beside training can save some."""
        return False

    @property
    def overlaps(self) -> bool:
        """True if sums started by `Group.start_sum` progress while this learner computes."""
        return False


class World(Protocol):
    """A set of learners, of which this process holds all (virtual, threads) or one (processes, MPI)."""

    @property
    def size(self) -> int:
        """Number of learners in the whole world."""

    def run(self, program: Program[T]) -> list[T]:
        """Run the program at every seat of this process; return the values in order of rank.

        Raises:
            PeerLost: A learner that others wait for is gone.
            Exception: Any exception of the program, once every local learner has ended.
        """


@dataclass(frozen=True)
class ScriptBlock:
    """Terms of one block of `murmur.join` in a script that another program runs as a learner of its world.

    Attributes:
        seat: Seat of the learner; None: the script runs by itself.
        out: Folder for the records, in place of the script's own; empty: the script's own.
        facts: Further entries of run.json.
        observers: Receivers of the learner's records.
    """

    seat: Seat | None = None
    out: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    observers: tuple[Callable[[Any], None], ...] = ()


class ScriptLearner(ABC):
    """A script that another program runs as one learner of its world, in a thread where every await blocks."""

    @abstractmethod
    def block(self, place: tuple[int, int] | None, model: nn.Module) -> ScriptBlock:
        """Begin a block of `murmur.join`.

        Args:
            place: Rank and size that the script has; None: it has none.
            model: Model that the script joins.

        Raises:
            SettingError: The block cannot take part in the world.
        """

    @abstractmethod
    def wait(self, awaited: object) -> None:
        """Let the thread wait for what a coroutine has awaited."""


SCRIPT: ContextVar[ScriptLearner | None] = ContextVar("learner of the script in this thread", default=None)


def wait_here(coroutine: Coroutine[Any, Any, Any], awaited: object) -> None:
    """Wait for what a coroutine has awaited, in a thread of a `ScriptLearner`.

    Raises:
        RuntimeError: This is not such a thread; in all others an await of murmur's blocks by itself.
    """
    script = SCRIPT.get()
    if script is None:
        coroutine.close()
        raise RuntimeError(
            f"{coroutine!r} awaited something that is not murmur's: outside the virtual world an await must"
            " block, so await only what a Learner or a Group gives (a simulated script calls murmur in its own thread)"
        )
    script.wait(awaited)


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end where every await blocks: in a world with wall seconds, and in a script's thread."""
    try:
        while True:
            wait_here(coroutine, coroutine.send(None))
    except StopIteration as stop:
        value: T = stop.value
        return value
