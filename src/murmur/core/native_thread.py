"""Threads that may be left behind in native code, and an end of the process that they do not disturb."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn


class NativeThread(threading.Thread):
    """Daemon thread whose call of a library may last longer than its result is needed."""

    def __init__(self, target: Callable[[], object], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)


def end_process(status: int) -> NoReturn:
    """End this process with an exit status, even if daemon threads are still in native code.

    At its exit Python ends a daemon thread that returns from native code, such as an operation of PyTorch. That unwinds
    frames of C++, which aborts the process with the status of a signal. With daemon threads the process ends at once,
    after the functions of `atexit` and the flush of its output.
    """
    if not any(thread.daemon for thread in threading.enumerate()):
        sys.exit(status)
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
