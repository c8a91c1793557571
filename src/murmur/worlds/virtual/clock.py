"""Virtual time: an event queue, a clock that jumps, and tasks that wait for events. One thread, deterministic.

Time passes in ticks of 2^-32 s (0.23 ns). Seconds are floating-point numbers, but every moment, and every time between
two moments, is a whole number of ticks, and sums and differences of those are exact for 24 days. Moments that are equal
on paper, such as the end of ten steps of 0.1 s and of ten rounds of 0.1 s, are therefore equal here too, and events at
one moment happen in the order in which they were planned.

Tasks wait for `Event`s only. Each event describes itself, so that the report of a run that cannot go on lists the waits
of all tasks and their beginnings.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from enum import IntEnum
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")
STILL_EVENTS = 200_000  # number of events at one moment that counts as a livelock
# Number of polls that fire in a row, while no other event lies ahead, that counts as a livelock. A gradient, a message
# under way, a lease or a suspended learner is such an event, however late it comes. Without one only a loop with a time
# limit can go on, and the longest of them lasts 60 s: 240 polls of each learner.
IDLE_POLLS = 100_000
# Number of events in a row, none of which is work and while no work lies ahead, that counts as a livelock: learners
# send messages without end, but train no more. The end of a run needs some dozens of events of each learner.
IDLE_EVENTS = 500_000
TICKS_PER_SECOND = 2.0**32  # a power of two: a number of ticks is exact as a number of seconds
TICK_SECONDS = 1 / TICKS_PER_SECOND


LONGEST_SECONDS = 1e12


class Deadlock(RuntimeError):
    """Tasks wait, but no event is left."""


class Livelock(RuntimeError):
    """Events go on without end, at one moment or without work."""


class EventKind(IntEnum):
    """Kinds of future events, by how much they can bring a run forward."""

    POLL = 0  # a task looks again whether it can go on
    OTHER = 1  # for example the arrival of a message
    WORK = 2  # a gradient, a fault, the end of a lease, of a suspension


class Event(Generic[T]):
    """An event that happens once; `what` describes it in reports."""

    def __init__(self, clock: Clock, what: str) -> None:
        self.clock, self.what = clock, what
        self.fired = False
        self._value: T | None = None
        self.error: BaseException | None = None
        self._waiting: list[ClockTask[Any]] = []

    def fire(self, value: T | None = None, error: BaseException | None = None) -> None:
        """Make the event happen now; its waiters go on in the order of waiting."""
        if self.fired:
            raise RuntimeError(f"{self.what} happened twice")
        self.fired, self._value, self.error = True, value, error
        for task in self._waiting:
            self.clock.now_do(task.resume)
        self._waiting.clear()

    def result(self) -> T:
        if not self.fired:
            raise RuntimeError(f"{self.what} has not happened yet")
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]

    def wait(self, task: ClockTask[Any]) -> None:
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
                self.clock.after(pause, self.resume, EventKind.WORK)
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
            # The setting belongs to the thread: other learners would now run without gradients.
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
        self.dead = True
        self.clock.ended(self)
        self.coroutine.close()


class Clock:
    """Queue of future events. `now` is in virtual seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.notes: list[str] = []  # further lines of a report, after the waiting tasks
        self._queue: list[tuple[float, int, Callable[[], None], EventKind]] = []  # moment, order, act, kind
        self._ready: deque[tuple[int, Callable[[], None]]] = deque()  # events at this moment, which need no sorting
        self._count = 0
        self._dropped = 0
        self._tasks: dict[int, ClockTask[Any]] = {}
        self._paused_until: dict[int, float] = {}
        self._failure: Exception | None = None

    def after(self, seconds: float, act: Callable[[], None], kind: EventKind = EventKind.OTHER) -> None:
        """Call `act` after `seconds`, rounded to ticks; equal times keep their order. The kind tells livelocks."""
        if not 0 <= seconds < LONGEST_SECONDS:
            raise ValueError(f"an event must lie between now and {LONGEST_SECONDS:g} s from now: {seconds} s")
        ticks = round(seconds * TICKS_PER_SECOND)
        if ticks == 0:
            self.now_do(act)
            return
        heapq.heappush(self._queue, (self.now + ticks * TICK_SECONDS, self._count, act, kind))
        self._count += 1

    def now_do(self, act: Callable[[], None]) -> None:
        """Call `act` at this moment, after all calls already planned for it."""
        self._ready.append((self._count, act))
        self._count += 1

    @property
    def events(self) -> int:
        """Number of events that have happened."""
        return self._count - len(self._queue) - len(self._ready) - self._dropped

    def event(self, what: str) -> Event[Any]:
        return Event(self, what)

    def sleep(self, seconds: float, what: str, kind: EventKind = EventKind.OTHER) -> Event[None]:
        """Create an event that fires after `seconds`; `kind` as for `after`."""
        event: Event[None] = Event(self, what)
        self.after(seconds, event.fire, kind)
        return event

    def start(self, coroutine: Coroutine[Any, Any, T], what: str, owner: int) -> ClockTask[T]:
        """Run a coroutine as a task of learner `owner`, from now on."""
        task: ClockTask[T] = ClockTask(self, coroutine, what, owner)
        self._tasks[id(task)] = task
        self.now_do(task.resume)
        return task

    def ended(self, task: ClockTask[Any]) -> None:
        self._tasks.pop(id(task), None)

    @property
    def stops(self) -> bool:
        """True if any learner was ever stopped."""
        return bool(self._paused_until)

    def pause_of(self, owner: int) -> float:
        """Seconds for which a stopped learner still stands still."""
        return max(0.0, self._paused_until.get(owner, 0.0) - self.now)

    def stop(self, owner: int, seconds: float) -> None:
        """Let a learner stand still for `seconds`; its events in between happen afterwards."""
        end = self.now + round(seconds * TICKS_PER_SECOND) * TICK_SECONDS
        self._paused_until[owner] = max(self._paused_until.get(owner, 0.0), end)

    def kill(self, owner: int) -> None:
        """End all tasks of a learner, and its suspension: a process that is started in its place runs at once."""
        self._paused_until.pop(owner, None)
        for task in [t for t in self._tasks.values() if t.owner == owner]:
            task.kill()

    def abort(self, failure: Exception) -> None:
        self._failure = self._failure or failure

    def run(self) -> None:
        """Let events happen until every task has ended.

        Raises:
            Deadlock: Tasks wait, but no event is left.
            Livelock: Too many events happen at one moment, or too many in a row without work.
            Exception: The error given to `abort`.
        """
        queue, ready, tasks, still, polls, idle = self._queue, self._ready, self._tasks, 0, 0, 0
        while tasks:
            if ready and not (queue and queue[0][0] <= self.now and queue[0][1] < ready[0][0]):
                act = ready.popleft()[1]
                still += 1
            elif queue:
                at, _, act, kind = heapq.heappop(queue)
                still = 0 if at > self.now else still + 1
                polls = polls + 1 if kind is EventKind.POLL else 0
                idle = 0 if kind is EventKind.WORK else idle + 1
                self.now = at
            else:
                raise Deadlock(self._report(f"virtual cluster is stuck at t={self.now:.3f}s"))
            if still > STILL_EVENTS:
                raise Livelock(self._report(f"{STILL_EVENTS} events without time passing at t={self.now:.3f}s"))
            if polls > IDLE_POLLS:
                self._check_ahead(EventKind.OTHER, f"{IDLE_POLLS} polls and no other event")
                polls = 0
            if idle > IDLE_EVENTS:
                self._check_ahead(EventKind.WORK, f"{IDLE_EVENTS} events and no gradient")
                idle = 0
            act()
            if self._failure is not None:
                raise self._failure

    def _check_ahead(self, least: EventKind, passed: str) -> None:
        """Raise Livelock unless some event of this kind or a higher one lies ahead."""
        if not self._ready and all(kind < least for *_, kind in self._queue):
            raise Livelock(self._report(f"learners wait without end: {passed} up to t={self.now:.3f}s"))

    def close(self) -> None:
        """Drop all tasks that have not ended (after an error)."""
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
