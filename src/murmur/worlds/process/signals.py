"""Signals that ask a process to save and end, and the end of child processes.

SIGTERM is sent by schedulers, SIGUSR1 can be sent by Slurm earlier, SIGINT is Ctrl-C. The first one only asks. Another
SIGTERM or SIGINT, after some time, ends the process at once. Within that time it counts as the same request, delivered
twice (by the scheduler and by the launcher).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

from murmur.core.stop_signals import SAME_SECONDS, STOP_SIGNALS, STOPPED_STATUS, Stopped
from murmur.worlds.awake_clock import TICK_SECONDS, awake_seconds

__all__ = ["STOPPED_STATUS", "StopSignals", "StopWhenPolled", "ignore_until_ready", "take_interrupts_again"]


class StopSignals:
    """Context in which the signals are requests; call it to ask if there was one. For the main thread only.

    SIGINT stays ignored in a process that was started to ignore it, in the background of a script.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self.number = 0  # of the signal; 0 if there was none
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
        """End code that cannot poll by `Stopped`, if there was a signal."""
        if self._since is not None:
            raise Stopped(self.number)

    def _listen(self) -> None:
        if threading.current_thread() is threading.main_thread():
            taken = [n for n in STOP_SIGNALS if n != signal.SIGINT or signal.getsignal(n) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._take) for number in taken}

    def _take(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        if self._since is None:
            self._since, self.number = time.monotonic(), number
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


GRACE_SECONDS = 5.0  # for a process that has nothing to save, between the request to end and its kill
REAP_SECONDS = 0.05  # for another thread that has waited for a process, to set its exit code
UNKNOWN_CODE = -1000  # of a process that other code has waited for; no signal has this number


def die_with_parent() -> Callable[[], object]:
    """Return the code that a child runs before the program, so that it is killed when its parent ends in any way."""
    if not sys.platform.startswith("linux"):
        return lambda: None  # elsewhere the launcher's own clean-up has to do
    prctl: Any = ctypes.CDLL(None).prctl
    set_parent_death_signal = 1
    return partial(prctl, set_parent_death_signal, int(signal.SIGKILL))


class ChildProcess(Protocol):
    """A child process of a launcher: the part of `subprocess.Popen` that is in use."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int, /) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


def end_all(
    processes: Sequence[ChildProcess], grace_seconds: float = GRACE_SECONDS, ask: bool = True
) -> list[ChildProcess]:
    """End processes: ask, unless they have been asked already, wait for `grace_seconds`, kill; return those killed."""
    for process in processes:
        if process.poll() is None:
            if ask:
                process.terminate()
            process.send_signal(signal.SIGCONT)  # a stopped process would not handle the signal
    deadline, killed = awake_seconds() + grace_seconds, []
    for process in processes:
        while process.poll() is None and (left := deadline - awake_seconds()) > 0:
            with suppress(subprocess.TimeoutExpired):
                process.wait(min(left, TICK_SECONDS))
        if process.poll() is None:
            process.kill()
            process.wait()
            killed.append(process)
    return killed


def exit_code(process: ChildProcess) -> int | None:
    """Return a child's exit code, None while it runs, or `UNKNOWN_CODE`, for which `poll` returns 0."""
    if process.returncode is None:
        try:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            time.sleep(REAP_SECONDS)  # another thread that polls the process may be about to set its code
            if process.returncode is None:
                process.returncode = UNKNOWN_CODE
    return process.poll()


def is_stopped(process: ChildProcess | None) -> bool:
    """True if a child is stopped by a signal (SIGSTOP, a debugger); its exit report stays to be waited for."""
    if process is None or process.returncode is not None:
        return False
    look = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        found = os.waitid(os.P_PID, process.pid, look)
    except ChildProcessError:
        return False  # it has ended, and another thread of this program has already waited for it
    return found is not None and found.si_code in (os.CLD_STOPPED, os.CLD_TRAPPED)
