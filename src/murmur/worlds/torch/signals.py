"""Signals that ask a process to save and end: SIGTERM, which schedulers send, and SIGUSR1, which Slurm can send before.

The first one only asks. Another SIGTERM, when the first had some time, ends the process at once; within that time it is
taken for the same request, which reached the process twice (from the scheduler and from the launcher).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

ASKING = (signal.SIGTERM, signal.SIGUSR1)
SAME_SECONDS = 2.0
HALTED_STATUS = 79  # of a process that has saved and ended because it was asked to


class StopSignals:
    """Inside, the two signals ask; calling it says whether they have. Only the main thread can be asked."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in ASKING}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        return self._since is not None

    def _take(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        if self._since is None:
            self._since = time.monotonic()
        elif number == signal.SIGTERM and time.monotonic() - self._since > SAME_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def ignore_until_ready() -> None:
    """What a learner's process begins with: a request that comes before it can save must not end it."""
    for number in ASKING:
        signal.signal(number, signal.SIG_IGN)
