"""Stop signals as one exception: SIGTERM, SIGINT and SIGUSR1 raise `Stopped` in the main thread.

The exception unwinds through all active context managers, so that processes are ended and unfinished files removed, as
after any other error. Code that polls (the trainer, the launcher) takes the signals itself while it runs, see
`murmur.worlds.process.signals`.

Python runs a handler only between two bytecodes of the main thread. A second thread therefore watches, and ends the
program where the exception does not: in native code that does not return, after a library's callback lost the
exception, or during a cleanup that waits. Ending at once is safe, because files get their names only when they are
complete.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
STOPPED_STATUS = 79  # exit status of a program that ended on request, and can go on
SAME_SECONDS = 2.0  # a signal repeated within this time counts as the same request
REMIND_SECONDS = 0.5
GRACE_SECONDS = 3.0  # between the signal and the forced end


@contextmanager
def usual_signals() -> Iterator[None]:
    """Undo what a parent process has left: SIGCHLD ignored, or signals blocked.

    While SIGCHLD is ignored, the system drops the exit statuses of children, and `subprocess` reports 0 for them. A
    blocked SIGTERM would never arrive. Ignored SIGINT and SIGHUP stay so: scripts and nohup ignore them on purpose.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    child = (
        signal.signal(signal.SIGCHLD, signal.SIG_DFL) if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN else None
    )
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if child is not None:
            signal.signal(signal.SIGCHLD, child)


class Stopped(BaseException):
    """A signal asked this program to stop. Not an error: code that handles errors must let it pass."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def name(self) -> str:
        """Name of the signal, such as SIGTERM."""
        return signal.Signals(self.number).name


class Stoppable:
    """Raises `Stopped` in the main thread on a stop signal, once; a second SIGTERM or SIGINT ends the program.

    A signal that this process was started to ignore (SIGINT, in the background of a script) stays ignored. The others
    are needed by launchers and are always handled.

    A `Stopped` that leaves the block ends the program with status 79. A process that was started to ignore SIGUSR1 is a
    learner of a launcher: the launcher sends the request again, and reports it.

    Args:
        tell: Reports that the program ends because of a signal, and how to go on; called once, by either thread. None:
            a launcher reports it.
    """

    def __init__(self, tell: Callable[[Stopped], None] | None) -> None:
        self._tell = tell
        self._since: float | None = None
        self._number = 0
        self._reminding = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        main = threading.main_thread()
        if threading.current_thread() is not main:
            raise RuntimeError("only the main thread can be stopped by a signal")
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        threading.Thread(target=self._watch, args=(ours, main), daemon=True, name="stop signals").start()
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN:
            self._tell = None
        self._unraisable, sys.unraisablehook = sys.unraisablehook, self._drop
        self._pipe = theirs
        self._woken = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            if number != signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the earlier handlers. After a signal the thread goes on watching until the program has ended.

        Raises:
            SystemExit: Status 79, in place of `Stopped`.
        """
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._since is not None else handler)
        signal.set_wakeup_fd(self._woken)
        sys.unraisablehook = self._unraisable
        if self._since is None:
            os.close(self._pipe)
        # A library may drop a `Stopped` that falls into its import of another one; that import then fails later.
        if isinstance(error, Stopped) or (self._since is not None and isinstance(error, ImportError)):
            traceback.clear_frames(trace)  # drops the last references to iterators, which then end their work
            self._say(error if isinstance(error, Stopped) else Stopped(self._number))
            raise SystemExit(STOPPED_STATUS) from None

    def _take(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        if self._since is None:
            self._since, self._number = time.monotonic(), number
            raise Stopped(number)
        if self._reminding:
            self._reminding = False
            if not _unwinding():
                raise Stopped(self._number)
        elif number != signal.SIGUSR1 and time.monotonic() - self._since > SAME_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _watch(self, pipe: int, main: threading.Thread) -> None:
        """Wait for a signal handled by this object, remind the main thread of it, and end the program."""
        while True:
            byte = os.read(pipe, 1)
            if not byte:
                os.close(pipe)
                return
            number = byte[0]
            if number in STOP_SIGNALS and signal.getsignal(number) == self._take:
                break
        end = time.monotonic() + GRACE_SECONDS
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(REMIND_SECONDS, left))
            if self._since is not None and signal.getsignal(number) == self._take and main.ident is not None:
                self._reminding = True
                signal.pthread_kill(main.ident, number)
        self._say(Stopped(number))
        os._exit(STOPPED_STATUS)

    def _say(self, stopped: Stopped) -> None:
        tell, self._tell = self._tell, None
        logging.disable()  # a library interrupted in its import logs many messages at exit
        if tell is not None:
            tell(stopped)

    def _drop(self, unraisable: Any) -> None:
        """Ignore a `Stopped` that a callback or destructor could not raise: the main thread is reminded of it."""
        if not isinstance(unraisable.exc_value, Stopped):
            self._unraisable(unraisable)


def _unwinding() -> bool:
    """True if the main thread is cleaning up after `Stopped`. In a handler, the exception being handled is visible."""
    error = sys.exception()
    while error is not None and not isinstance(error, Stopped):
        error = error.__context__
    return error is not None


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
