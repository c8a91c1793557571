"""Processes that do a part of the work end when the process that asked for it is gone, however that ended."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

POLL_SECONDS = 0.5


def end_with_parent(parent: int | None = None) -> None:
    """Watch the parent process from now on, and end this one at once when it has ended.

    A pipe that closes tells the same, but only between two requests, and a pool's workers hold both ends of theirs.

    Args:
        parent: its process id; None for the one that `multiprocessing` knows.
    """
    known = multiprocessing.parent_process()
    if parent is None and known is None:
        raise ValueError("multiprocessing did not start this process: tell which one did")
    watched = known.pid if parent is None and known is not None else parent
    threading.Thread(target=_watch, args=(watched,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)  # no parent is left to report to, and files are renamed only when whole
