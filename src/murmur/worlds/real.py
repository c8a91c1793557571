"""Common parts of the worlds with wall seconds: activities are threads, an await blocks its thread, and messages that
have arrived wait in a mailbox.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from threading import Condition, Thread
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from murmur.core.group import Message, PeerLost
from murmur.core.trace import COMPUTE, DATA, Span, Trace
from murmur.core.world import Seat, drive
from murmur.worlds.awake_clock import awake_seconds, wait_awake

T = TypeVar("T")


class Activity(Generic[T]):
    """A coroutine running in a thread; awaiting it joins the thread."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], what: str, failed: Callable[[Exception], None]) -> None:
        self.what = what
        self.error: Exception | None = None
        self._value: T | None = None
        self._coroutine, self._failed = coroutine, failed
        self._thread = Thread(target=self._run, name=what, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = drive(self._coroutine)
        except Exception as error:
            self.error = error
            self._failed(error)

    def join(self) -> None:
        self._thread.join()

    def result(self) -> T:
        self.join()
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]

    def __await__(self) -> Generator[Any, None, T]:
        return self.result()
        yield  # type: ignore[unreachable]  # makes this function a generator


class RealSeat(Seat):
    """A learner's seat in a world with wall seconds."""

    def __init__(self, rank: int, began: float, sink: Callable[[Span], None] | None) -> None:
        self.rank, self._began = rank, began
        self.trace = Trace(rank, lambda: self.now, sink)
        self._spawned: list[Activity[Any]] = []

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    @property
    def works_beside(self) -> bool:
        return True

    def spawn(self, activity: Coroutine[Any, Any, T], what: str) -> Awaitable[T]:
        running = Activity(activity, what, self.failed)
        self._spawned.append(running)
        return running

    async def sleep(self, seconds: float) -> None:
        self.surface()  # a learner that only polls must learn that its averaging has failed
        time.sleep(seconds)

    def compute(self, job: Callable[[], T]) -> T:
        """Run a gradient's computation and record its seconds, less those it waited for data."""
        start, waited = self.now, self.trace.totals().get(DATA, 0.0)
        result = job()
        waited = self.trace.totals().get(DATA, 0.0) - waited
        self.trace.add(COMPUTE, start + waited, self.now, "gradient")
        return result

    def failed(self, error: Exception) -> None:
        """Handle the failure of a spawned activity: the next gradient raises it, and worlds may tell other learners."""

    def surface(self) -> None:
        """Raise the failure of a spawned activity, if there was one."""
        for activity in self._spawned:
            if isinstance(activity.error, PeerLost):
                raise activity.error  # it is not a failure of the activity itself
            if activity.error is not None:
                what = f"learner {self.rank}: its activity {activity.what!r} failed: {activity.error}"
                raise RuntimeError(what) from activity.error


class PostOffice(Protocol):
    """One learner's sender of vectors, and its mailbox."""

    box: Mailbox

    def room(self, numel: int, dtype: torch.dtype) -> Tensor | None:
        """Return memory for a vector that is posted and not changed afterwards, which then may not be copied; or None.

        A receiver only reads the vector.
        """

    def post(self, x: Tensor, to: int, tag: str, header: Sequence[float] = ()) -> None:
        """Queue a copy of x, with header numbers, for the learner at position `to`; return at once."""


class Mailbox:
    """Vectors in order of arrival. Any thread may put, any thread may take."""

    def __init__(self) -> None:
        self._arrived = Condition()
        self._messages: dict[str, list[Message]] = defaultdict(list)
        self._failure: Exception | None = None
        self._lost: dict[int, Exception] = {}

    def put(self, source: int, tag: str, x: Tensor, header: Sequence[float] = ()) -> None:
        with self._arrived:
            self._lost.pop(source, None)  # a message shows that the sender is here again
            self._messages[tag].append(Message(x, source, tuple(header)))
            self._arrived.notify_all()

    def fail(self, failure: Exception) -> None:
        """Raise this error in all present and later waits: nothing more will arrive."""
        with self._arrived:
            self._failure = self._failure or failure
            self._arrived.notify_all()

    def lose(self, source: int, failure: Exception) -> None:
        """Raise this error in all waits for `source` alone, present and later: nothing more will arrive from it."""
        with self._arrived:
            self._lost[source] = failure
            self._arrived.notify_all()

    def wait(self, tag: str, seconds: float) -> Message | None:
        """Return the oldest message under a tag, or None after `seconds`; raise the error given to `fail`."""
        deadline = awake_seconds() + seconds
        with self._arrived:
            while (found := self._find(None, tag)) is None:
                if self._failure is not None:
                    raise self._failure
                left = deadline - awake_seconds()
                if left <= 0:
                    return None
                self._arrived.wait(min(left, threading.TIMEOUT_MAX))
            return found

    def take(self, source: int | None, tag: str, timeout_seconds: float, missing: Callable[[], Exception]) -> Message:
        """Wait for a message; raise the error made by `missing()` if none arrives in time."""
        with self._arrived:
            found = self._find(source, tag)
            while found is None:
                failure = self._failure or (None if source is None else self._lost.get(source))
                if failure is not None:
                    raise failure
                if not wait_awake(self._arrived.wait, timeout_seconds):
                    raise missing()
                found = self._find(source, tag)
            return found

    def _find(self, source: int | None, tag: str) -> Message | None:
        queue = self._messages[tag]
        for i, message in enumerate(queue):
            if source is None or message.source == source:
                del queue[i]
                return message
        return None
