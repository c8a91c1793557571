"""Signals that ask a process to save and end: SIGTERM (sent by schedulers), SIGUSR1 (which Slurm can send earlier), and
SIGINT (Ctrl-C).

The first one only asks. Another SIGTERM or SIGINT, after some time, ends the process at once. Within that time it
counts as the same request, delivered twice (by the scheduler and by the launcher).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

from murmur.core.stop_signals import SAME_SECONDS, STOP_SIGNALS, STOPPED_STATUS, Stopped

__all__ = ["STOPPED_STATUS", "StopSignals", "StopWhenPolled", "ignore_until_ready", "take_interrupts_again"]


class StopSignals:
    """Context in which the signals are requests; call it to ask if there was one. For the main thread only.

    SIGINT stays ignored in a process that was started to ignore it, in the background of a script.
    """

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
        """End code that cannot poll, if there was a signal.

        Raises:
            Stopped: There was one.
        """
        if self._since is not None:
            raise Stopped(self._number)

    @property
    def number(self) -> int:
        """Number of the signal; 0 if there was none."""
        return self._number

    def _listen(self) -> None:
        if threading.current_thread() is threading.main_thread():
            taken = [n for n in STOP_SIGNALS if n != signal.SIGINT or signal.getsignal(n) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._take) for number in taken}

    def _take(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        if self._since is None:
            self._since, self._number = time.monotonic(), number
        elif number != signal.SIGUSR1 and time.monotonic() - self._since > SAME_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


class StopWhenPolled(StopSignals):
    """Stop signals from the first call on; until then, while nothing can be saved, the earlier handlers stay."""

    def __enter__(self) -> Self:
        return self

    def __call__(self) -> bool:
        if not self._before:
            self._listen()
        return super().__call__()


def ignore_until_ready() -> None:
    """Ignore the signals at the start of a learner's process, until Python can handle them.

    SIGINT is also blocked if the launcher was started to ignore it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def take_interrupts_again() -> None:
    """Undo the ignoring of SIGINT in a learner, unless its launcher ignores SIGINT itself."""
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    if signal.SIGINT not in blocked:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def has_reached_all(number: int) -> bool:
    """True if a signal is a Ctrl-C, which the terminal sends to this process and to all that it has started."""
    if number != signal.SIGINT:
        return False
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False  # this process has no terminal
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
