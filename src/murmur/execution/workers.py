"""Worker processes: started afresh, ended with the process that started them, with errors reported.

The starting process answers a stop signal that a whole process group gets (Ctrl-C, a batch system): it ends its workers
at once, even in the middle of a job. Files get their final names when they are complete, so none is damaged.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
SAME_REASON_SECONDS = 0.2
PATIENCE_SECONDS = 5.0  # for a worker to end by itself after its pipe is closed


class WorkerDied(RuntimeError):
    """A worker process has ended in the middle of a job, often for want of memory; a command shows no traceback."""

    of_user = True  # told by its message alone (murmur.core.errors.user_message)


@dataclass(frozen=True)
class Worker:
    """A process, and this process's end of the pipe to it."""

    process: BaseProcess
    connection: Connection


def start_worker(started: list[Worker], body: Callable[..., None], *arguments: Any) -> Worker:
    """Start a process that calls body(connection, *arguments), which must pickle; append it to `started`.

    The process is a fresh interpreter ("spawn"): a fork would copy locks held by other threads (torch has some).
    """
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # `start` would do it with signals unblocked meanwhile
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        ours, theirs = context.Pipe()
        process = context.Process(target=_run, args=(theirs, body, arguments), daemon=True)
        process.start()
        theirs.close()
        started.append(Worker(process, ours))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return started[-1]


def in_worker() -> bool:
    """True in a process that `start_worker` has started, which may not start others."""
    return multiprocessing.current_process().daemon


def end_workers(started: Sequence[Worker], patience_seconds: float = 0.0) -> None:
    """End processes: kill those that have not ended by themselves within `patience_seconds`."""
    for worker in started:
        worker.connection.close()
    for worker in started:
        worker.process.join(patience_seconds)
        worker.process.kill()
        worker.process.join()


def wait_for_reason() -> None:
    """Wait before reporting the death of a worker: the signal that ended it may be on its way to this process too."""
    time.sleep(SAME_REASON_SECONDS)


def _run(connection: Connection, body: Callable[..., None], arguments: Sequence[Any]) -> None:
    for number in (signal.SIGINT, signal.SIGUSR1):  # not SIGTERM, by which `multiprocessing` ends the rest
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    end_with_parent()
    with connection:
        body(connection, *arguments)


POLL_SECONDS = 0.5


def end_with_parent(parent: int | None = None) -> None:
    """Watch the parent process from now on, and end this process as soon as the parent has ended, in any way.

    A closed pipe gives the same signal, but only between two requests, and a pool's workers hold both ends of theirs.
    `parent` is its process id; None for the one that `multiprocessing` knows.
    """
    known = multiprocessing.parent_process()
    if parent is None and known is None:
        raise ValueError("multiprocessing did not start this process: give the id of its parent")
    watched = known.pid if parent is None and known is not None else parent
    threading.Thread(target=_watch, args=(watched,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)  # no parent is left to report to, and files are renamed only when whole


def cores_here() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
