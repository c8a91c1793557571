"""The one thread of a process that calls MPI: it starts operations, tests them, sleeps in between, delivers messages.

MPI makes progress only when it is called, and a call that waits for others occupies a core. Therefore no thread waits
inside MPI. Every operation is one that returns at once, this thread tests it repeatedly with short sleeps, and users of
the result wait for an event. Sums thus progress while the learner computes.

A message is one block of bytes, the same frame as over TCP (`process/wire_format.py`). MPI keeps the order in which
messages of one sender are matched, but a large one may be complete after a later small one. They are delivered in the
order in which they began.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import Event, Lock, Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor

from murmur.core.group import PeerLost
from murmur.worlds.awake_clock import awake_seconds, wait_awake
from murmur.worlds.process.messages import from_block, to_block
from murmur.worlds.real import Mailbox

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
        self._error = error
        self._done.set()

    def wait(self) -> None:
        """Wait until it is done; PeerLost if another learner has failed, or the timeout has passed."""
        if not wait_awake(self._done.wait, self.timeout_seconds):
            raise PeerLost(f"not all took part within {self.timeout_seconds:g} s")
        if self._error is not None:
            raise PeerLost(str(self._error)) from self._error


class MpiProgress:
    """The progress thread: `polls` return True if anything made progress, `failed` is told the error that ends all."""

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

        `start` calls MPI and returns its request, or None if the call has completed the operation; `finish` is called
        when the request is complete. `timeout_seconds` bounds the operation's `wait`.
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
        with self._lock:
            return not (self._asked or self._running)

    def check(self) -> None:
        """Raise PeerLost if another learner has failed, so that no operation can end."""
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
    """Wait for an operation before there is a progress thread, without occupying a core."""
    deadline = awake_seconds() + timeout_seconds
    while not request.Test():
        if awake_seconds() > deadline:
            raise PeerLost(f"not all processes of the MPI launch came within {timeout_seconds:g} s")
        time.sleep(LONGEST_PAUSE_SECONDS)


Block = np.ndarray[tuple[int], np.dtype[np.uint8]]


class MpiMail:
    """One learner's post office, on a communicator of its own; it begins the thread, which also calls `polls`."""

    def __init__(self, mpi: Any, comm: Any, polls: Sequence[Callable[[], bool]] = ()) -> None:
        self.box = Mailbox()
        self._mpi, self._comm, self._rank = mpi, comm, comm.rank
        self._coming: dict[int, deque[tuple[Any, Block]]] = defaultdict(deque)
        self.progress = MpiProgress([self.poll, *polls], self.box.fail)

    def room(self, numel: int, dtype: torch.dtype) -> Tensor | None:  # noqa: ARG002 - the library copies
        return None

    def post(self, x: Tensor, to: int, tag: str, header: Sequence[float] = ()) -> None:
        """Queue a copy of x for learner `to`; return at once. Raises the errors of `encode`."""
        if to == self._rank:
            self.box.put(self._rank, tag, x.clone(), header)
            return
        message = to_block(x.detach().cpu(), tag, header)
        self.progress.submit(lambda: self._comm.Isend([message, self._mpi.BYTE], to), lambda: None, 0.0)

    def poll(self) -> bool:
        """Receive arrived messages; return True if any made progress. Raises ValueError for a malformed one."""
        moved = False
        status = self._mpi.Status()
        while (found := self._comm.Improbe(status=status)) is not None:
            message = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
            self._coming[status.source].append((found.Irecv([message, self._mpi.BYTE]), message))
        for source, queue in self._coming.items():
            while queue and queue[0][0].Test():
                self.box.put(source, *from_block(queue.popleft()[1]))
                moved = True
        return moved
