"""Virtual time: an event queue, a clock that jumps, and tasks that wait for events. One thread, deterministic.

Time passes in ticks of 2^-32 s (0.23 ns). Seconds are floating-point numbers, but every moment and every time between
two moments is a whole number of ticks, and sums and differences of those are exact for 24 days. So moments that are
equal on paper, such as the end of ten steps of 0.1 s and of ten rounds of 0.1 s, are equal here too, and events at one
moment happen in the order in which they were planned.

Everything a task can wait for is an `Event` that knows what it stands for, so that a run that cannot go on says who
waits for what since when.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")
STILL_EVENTS = 200_000  # so many events without time passing are a livelock
TICKS_PER_SECOND = 2.0**32  # a power of two: a number of ticks is exact as a number of seconds
TICK_SECONDS = 1 / TICKS_PER_SECOND


LONGEST_SECONDS = 1e12


class Deadlock(RuntimeError):
    """Nothing is left to happen, but tasks still wait."""


class Livelock(RuntimeError):
    """Events go on for ever without time passing."""


class Event(Generic[T]):
    """Something that will happen once. `what` says what, for reports."""

    def __init__(self, clock: Clock, what: str) -> None:
        self.clock, self.what = clock, what
        self.fired = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiting: list[ClockTask[Any]] = []

    def fire(self, value: T | None = None, error: BaseException | None = None) -> None:
        """It happens now; whoever waits goes on in the order of waiting."""
        if self.fired:
            raise RuntimeError(f"{self.what} happened twice")
        self.fired, self._value, self._error = True, value, error
        for task in self._waiting:
            self.clock.now_do(task.resume)
        self._waiting.clear()

    def failed(self) -> BaseException | None:
        """The error it fired with, if it did."""
        return self._error

    def result(self) -> T:
        """Its value, once it has fired; raises the error it fired with."""
        if not self.fired:
            raise RuntimeError(f"{self.what} has not happened yet")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def wait(self, task: ClockTask[Any]) -> None:
        """Let a task wait."""
        self._waiting.append(task)

    def __await__(self) -> Generator[Event[Any], None, T]:
        if not self.fired:
            yield self
        return self.result()


class ClockTask(Event[T]):
    """A running coroutine; as an event it fires when the coroutine ends. `owner` is its learner."""

    def __init__(self, clock: Clock, coroutine: Coroutine[Any, Any, T], what: str, owner: int) -> None:
        super().__init__(clock, what)
        self.coroutine, self.owner = coroutine, owner
        self.awaiting: Event[Any] | None = None
        self.since_seconds = clock.now
        self.dead = False

    def resume(self) -> None:
        """Run until the next wait."""
        if self.dead:
            return
        if self.clock.stops:
            pause = self.clock.pause_of(self.owner)
            if pause > 0:
                self.clock.after(pause, self.resume)
                return
        try:
            awaited = self.coroutine.send(None)
        except StopIteration as stop:
            self._end(stop.value, None)
        except Exception as error:
            self._end(None, error)
        else:
            self._await(awaited)

    def _await(self, awaited: Any) -> None:
        if not isinstance(awaited, Event):
            self._refuse(f"{awaited!r}, which is not an event of the virtual world")
            return
        if not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            # The setting belongs to the thread: another learner would now run without gradients.
            what = "no_grad" if not torch.is_grad_enabled() else "autocast"
            torch.set_grad_enabled(True)
            self._refuse(f"something inside {what}; leave the block first")
            return
        self.awaiting, self.since_seconds = awaited, self.clock.now
        awaited.wait(self)

    def _refuse(self, what: str) -> None:
        self.coroutine.close()
        self._end(None, RuntimeError(f"learner {self.owner}: {self.what} awaited {what}"))

    def _end(self, value: T | None, error: BaseException | None) -> None:
        self.clock.ended(self)
        self.awaiting = None
        self.fire(value, error)

    def kill(self) -> None:
        """End the task without a word to anyone."""
        self.dead = True
        self.clock.ended(self)
        self.coroutine.close()


class Clock:
    """The queue of what happens when. `now` is in virtual seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.notes: list[str] = []  # what a report should mention besides the waiting tasks
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._ready: deque[tuple[int, Callable[[], None]]] = deque()  # what happens now: no need to sort it
        self._count = 0
        self._dropped = 0
        self._tasks: dict[int, ClockTask[Any]] = {}
        self._paused_until: dict[int, float] = {}
        self._failure: Exception | None = None

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Let `act` happen so many seconds from now, rounded to ticks; equal times keep their order."""
        if not 0 <= seconds < LONGEST_SECONDS:
            raise ValueError(f"an event must lie between now and {LONGEST_SECONDS:g} s from now: {seconds} s")
        ticks = round(seconds * TICKS_PER_SECOND)
        if ticks == 0:
            self.now_do(act)
            return
        heapq.heappush(self._queue, (self.now + ticks * TICK_SECONDS, self._count, act))
        self._count += 1

    def now_do(self, act: Callable[[], None]) -> None:
        """Let `act` happen at this moment, after what is to happen now already."""
        self._ready.append((self._count, act))
        self._count += 1

    @property
    def events(self) -> int:
        """How many have happened."""
        return self._count - len(self._queue) - len(self._ready) - self._dropped

    def event(self, what: str) -> Event[Any]:
        """A new event."""
        return Event(self, what)

    def sleep(self, seconds: float, what: str) -> Event[None]:
        """An event that fires after so many seconds."""
        event: Event[None] = Event(self, what)
        self.after(seconds, event.fire)
        return event

    def start(self, coroutine: Coroutine[Any, Any, T], what: str, owner: int) -> ClockTask[T]:
        """Run a coroutine as a task of learner `owner`, from now on."""
        task: ClockTask[T] = ClockTask(self, coroutine, what, owner)
        self._tasks[id(task)] = task
        self.now_do(task.resume)
        return task

    def ended(self, task: ClockTask[Any]) -> None:
        """Forget a task."""
        self._tasks.pop(id(task), None)

    @property
    def stops(self) -> bool:
        """Whether any learner was ever stopped."""
        return bool(self._paused_until)

    def pause_of(self, owner: int) -> float:
        """Seconds that a stopped learner has still to stand still."""
        return max(0.0, self._paused_until.get(owner, 0.0) - self.now)

    def stop(self, owner: int, seconds: float) -> None:
        """A learner stands still for so many seconds; what it would do in between happens afterwards."""
        end = self.now + round(seconds * TICKS_PER_SECOND) * TICK_SECONDS
        self._paused_until[owner] = max(self._paused_until.get(owner, 0.0), end)

    def kill(self, owner: int) -> None:
        """End all tasks of a learner."""
        for task in [t for t in self._tasks.values() if t.owner == owner]:
            task.kill()

    def abort(self, failure: Exception) -> None:
        """End the run with this error."""
        self._failure = self._failure or failure

    def run(self) -> None:
        """Let events happen until every task has ended.

        Raises:
            Deadlock: tasks wait, but nothing is left to happen.
            Livelock: too many events happen at one and the same time.
            Exception: what `abort` was given.
        """
        queue, ready, tasks, still = self._queue, self._ready, self._tasks, 0
        while tasks:
            if ready and not (queue and queue[0][0] <= self.now and queue[0][1] < ready[0][0]):
                act = ready.popleft()[1]
                still += 1
            elif queue:
                at, _, act = heapq.heappop(queue)
                still = 0 if at > self.now else still + 1
                self.now = at
            else:
                raise Deadlock(self._report(f"virtual cluster is stuck at t={self.now:.3f}s"))
            if still > STILL_EVENTS:
                raise Livelock(self._report(f"{STILL_EVENTS} events without time passing at t={self.now:.3f}s"))
            act()
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        """Drop whatever has not ended (after an error)."""
        for task in list(self._tasks.values()):
            task.kill()
        self._dropped += len(self._queue) + len(self._ready)
        self._queue.clear()
        self._ready.clear()

    def _report(self, headline: str) -> str:
        lines = [headline + ":"]
        for task in sorted(self._tasks.values(), key=lambda t: (t.owner, t.what)):
            waits = f"for {task.awaiting.what}" if task.awaiting else "to go on"
            lines.append(f"  learner {task.owner} ({task.what}): waiting since t={task.since_seconds:.3f}s {waits}")
        return "\n".join(lines + [f"  {note}" for note in self.notes])
