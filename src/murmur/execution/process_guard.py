"""Process guard: a worker process ends when its parent process is gone, however the parent ended."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

POLL_SECONDS = 0.5


def end_with_parent(parent: int | None = None) -> None:
    """Watch the parent process from now on, and end this process as soon as the parent has ended.

    A closed pipe gives the same signal, but only between two requests, and a pool's workers hold both ends of theirs.

    Args:
        parent: its process id; None for the one that `multiprocessing` knows.
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
