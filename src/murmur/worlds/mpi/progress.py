"""The one thread of a process that calls MPI: it starts operations, tests them, and sleeps in between.

MPI makes progress only when it is called, and a call that waits for others occupies a core. Therefore no thread waits
inside MPI. Every operation is one that returns at once, this thread tests it repeatedly with short sleeps, and users of
the result wait for an event. Sums thus progress while the learner computes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import Event, Lock, Thread
from typing import Any

from murmur.core.group import PeerLost
from murmur.worlds.awake_clock import awake_seconds, wait_awake

Request = Any  # mpi4py.MPI.Request
FIRST_PAUSE_SECONDS = 2e-5
LONGEST_PAUSE_SECONDS = 1e-3


class Operation:
    """An operation under way; `wait` is for the thread that needs the result.

    It keeps alive the buffers that MPI reads and writes, through references in `start` and `finish`.
    """

    def __init__(self, start: Callable[[], Request], finish: Callable[[], None], timeout_seconds: float) -> None:
        self.start, self.finish, self.timeout_seconds = start, finish, timeout_seconds
        self.request: Request = None
        self._done = Event()
        self._error: Exception | None = None

    def end(self, error: Exception | None = None) -> None:
        """Mark it as done, or as failed with an error."""
        self._error = error
        self._done.set()

    def wait(self) -> None:
        """Wait until it is done.

        Raises:
            PeerLost: Another learner has failed, or the timeout has passed.
        """
        if not wait_awake(self._done.wait, self.timeout_seconds):
            raise PeerLost(f"not all took part within {self.timeout_seconds:g} s")
        if self._error is not None:
            raise PeerLost(str(self._error)) from self._error


class MpiProgress:
    """The progress thread.

    Args:
        polls: Called in every turn; each returns True if anything made progress, and raises to end everything.
        failed: Called with the error that ended everything.
    """

    def __init__(self, polls: Sequence[Callable[[], bool]], failed: Callable[[Exception], None]) -> None:
        self._polls, self._failed = list(polls), failed
        self._lock: AbstractContextManager[object] = Lock()
        self._asked: deque[Operation] = deque()
        self._running: list[Operation] = []
        self._failure: Exception | None = None
        self._woken, self._stopping = Event(), Event()
        self._thread = Thread(target=self._run, name="MPI", daemon=True)
        self._thread.start()

    def submit(self, start: Callable[[], Request], finish: Callable[[], None], timeout_seconds: float) -> Operation:
        """Start and finish an operation in the thread. Never waits, never fails.

        Args:
            start: Calls MPI and returns its request; None if the call has completed the operation.
            finish: Called when the request is complete.
            timeout_seconds: Longest duration of `wait`.
        """
        operation = Operation(start, finish, timeout_seconds)
        with self._lock:
            if self._failure is None:
                self._asked.append(operation)
            else:
                operation.end(self._failure)
        self._woken.set()
        return operation

    @property
    def idle(self) -> bool:
        """True if all submitted operations are done."""
        with self._lock:
            return not (self._asked or self._running)

    def check(self) -> None:
        """Check that operations can still end.

        Raises:
            PeerLost: Another learner has failed.
        """
        if self._failure is not None:
            raise PeerLost(str(self._failure)) from self._failure

    def stop(self) -> None:
        """Stop the thread; operations under way will never be done."""
        self._stopping.set()
        self._woken.set()
        self._thread.join()

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        try:
            while not self._stopping.is_set():
                self._woken.clear()
                if self._turn():
                    pause = FIRST_PAUSE_SECONDS
                else:
                    self._woken.wait(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        except Exception as error:
            self._fail(error)

    def _turn(self) -> bool:
        moved = False
        with self._lock:
            fresh = list(self._asked)
            self._running += fresh
            self._asked.clear()
        for operation in fresh:
            operation.request = operation.start()
        for operation in list(self._running):
            if operation.request is None or operation.request.Test():
                operation.finish()
                operation.end()
                with self._lock:
                    self._running.remove(operation)
                moved = True
        for poll in self._polls:
            moved = poll() or moved
        return moved

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._failure = error
            left = [*self._running, *self._asked]
        for operation in left:
            operation.end(error)
        self._failed(error)


def settle(request: Request, timeout_seconds: float) -> None:
    """Wait for an operation before there is a progress thread, without occupying a core.

    Raises:
        PeerLost: It took too long.
    """
    deadline = awake_seconds() + timeout_seconds
    while not request.Test():
        if awake_seconds() > deadline:
            raise PeerLost(f"not all processes of the MPI launch came within {timeout_seconds:g} s")
        time.sleep(LONGEST_PAUSE_SECONDS)
