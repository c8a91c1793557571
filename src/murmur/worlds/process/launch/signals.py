"""Signals that ask a process to save and end: SIGTERM, which schedulers send, SIGUSR1, which Slurm can send before, and
SIGINT (Ctrl-C).

The first one only asks. Another SIGTERM or SIGINT, when the first had some time, ends the process at once; within that
time it is taken for the same request, which reached the process twice (from the scheduler and from the launcher).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

from murmur.core.stop_signals import SAME_SECONDS, STOP_SIGNALS, STOPPED_STATUS, Stopped

__all__ = ["STOPPED_STATUS", "StopSignals", "StopWhenPolled", "ignore_until_ready"]


class StopSignals:
    """Inside, the signals ask; calling it says whether they have. Only the main thread can be asked."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._number = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        return self._since is not None

    def stop(self) -> None:
        """Go on with what cannot poll, or not, if there was a signal.

        Raises:
            Stopped: there was one.
        """
        if self._since is not None:
            raise Stopped(self._number)

    @property
    def number(self) -> int:
        """The signal that asked; 0: none has."""
        return self._number

    def _listen(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in STOP_SIGNALS}

    def _take(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        if self._since is None:
            self._since, self._number = time.monotonic(), number
        elif number != signal.SIGUSR1 and time.monotonic() - self._since > SAME_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


class StopWhenPolled(StopSignals):
    """The same from the first call on; until then, while nothing can be saved, the handlers before stay in force."""

    def __enter__(self) -> Self:
        return self

    def __call__(self) -> bool:
        if not self._before:
            self._listen()
        return super().__call__()


def ignore_until_ready() -> None:
    """What a learner's process begins with: a request that comes before Python can take it must not end it."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
