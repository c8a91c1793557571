"""Clock of the time in which a process can run: it stands still while the process is stopped or frozen.

Ctrl-Z, `scontrol suspend` and a frozen container stop all learners at once, and the monotonic clock goes on. Deadlines
on it would all have passed when the learners continue, and each would count the others as lost. A thread reads this
clock several times a second, so a much longer time between two readings means that the process could not run. Standard
library only.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import cache
from threading import TIMEOUT_MAX, Lock, Thread

TICK_SECONDS = 0.25  # between two readings
PAUSE_SECONDS = 1.5  # a longer time between two readings counts as a pause


class AwakeClock:
    """A monotonic clock without the pauses of its process, to be read every `TICK_SECONDS`; any thread may read it."""

    def __init__(self, source: Callable[[], float] = time.monotonic) -> None:
        self._source, self._lock = source, Lock()
        self._read = source()
        self._paused = 0.0
        self._resumed, self._length = -math.inf, 0.0

    def __call__(self) -> float:
        with self._lock:
            return self._now()

    def settles(self, seconds: float) -> bool:
        """Return True after a pause, while other processes may not have been continued yet.

        That time is as long as the pause, and at most `seconds`. A short pause may be that of a busy processor.
        """
        with self._lock:
            return self._now() - self._resumed < min(seconds, self._length)

    def _now(self) -> float:
        read = self._source()
        gap, self._read = read - self._read, read
        if gap > PAUSE_SECONDS:
            self._paused += gap - TICK_SECONDS
            self._resumed, self._length = read - self._paused, gap
        return read - self._paused


def awake_clock() -> AwakeClock:
    """Return the clock of this process."""
    return _clock_of(os.getpid())


@cache  # a process has one clock; a forked one has none of its parent's threads
def _clock_of(_process: int) -> AwakeClock:
    clock = AwakeClock()

    def tick() -> None:
        while True:
            time.sleep(TICK_SECONDS)
            clock()

    Thread(target=tick, name="awake clock", daemon=True).start()
    return clock


def wait_awake(wait: Callable[[float], bool], seconds: float) -> bool:
    """Wait by `wait`, the method of an event or a condition, for that long without pauses; return True if it came."""
    deadline = awake_seconds() + seconds
    while not wait(min(max(0.0, deadline - awake_seconds()), TIMEOUT_MAX)):
        if awake_seconds() >= deadline:
            return False
    return True


def awake_seconds() -> float:
    """Return the present time on the clock of this process."""
    return awake_clock()()
