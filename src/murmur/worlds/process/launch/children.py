"""Child processes: their end together with the parent, their end on request, their exit codes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from murmur.worlds.awake_clock import TICK_SECONDS, awake_seconds

GRACE_SECONDS = 5.0  # for a process that has nothing to save, between the request to end and its kill
REAP_SECONDS = 0.05  # for another thread that has waited for a process, to set its exit code
UNKNOWN_CODE = -1000  # of a process that other code has waited for; no signal has this number


def die_with_parent() -> Callable[[], None] | None:
    """Return the code that a child runs before the program, so that it is killed when its parent ends in any way."""
    if not sys.platform.startswith("linux"):
        return None  # elsewhere the launcher's own clean-up has to do
    prctl: Any = ctypes.CDLL(None).prctl
    set_parent_death_signal = 1
    return partial(prctl, set_parent_death_signal, int(signal.SIGKILL))


def end_all(
    processes: Sequence[subprocess.Popen[bytes]], grace_seconds: float = GRACE_SECONDS, ask: bool = True
) -> list[subprocess.Popen[bytes]]:
    """End processes: ask, wait, kill.

    Args:
        processes: Processes, some of which may have ended.
        grace_seconds: Time for them to end.
        ask: False if they have been asked already.

    Returns:
        The processes that were killed.
    """
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


def exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Return a child's exit code, None while it runs, or `UNKNOWN_CODE`, for which `poll` returns 0."""
    if process.returncode is None:
        try:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            time.sleep(REAP_SECONDS)  # another thread that polls the process may be about to set its code
            if process.returncode is None:
                process.returncode = UNKNOWN_CODE
    return process.poll()


def is_stopped(process: subprocess.Popen[bytes] | None) -> bool:
    """True if a child is stopped by a signal (SIGSTOP, a debugger); its exit report stays to be waited for."""
    if process is None or process.returncode is not None:
        return False
    look = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        found = os.waitid(os.P_PID, process.pid, look)
    except ChildProcessError:
        return False  # it has ended, and another thread of this program has already waited for it
    return found is not None and found.si_code in (os.CLD_STOPPED, os.CLD_TRAPPED)
