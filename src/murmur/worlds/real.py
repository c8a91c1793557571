"""Common parts of the worlds with wall seconds: activities are threads, and an await blocks its thread."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from threading import Thread
from typing import Any, Generic, TypeVar

from murmur.core.group import PeerLost
from murmur.core.trace import COMPUTE, DATA, Span, Trace
from murmur.core.world import Seat, drive

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
        """Wait for the end."""
        self._thread.join()

    def result(self) -> T:
        """Wait for the end; return the value, or raise the error."""
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
