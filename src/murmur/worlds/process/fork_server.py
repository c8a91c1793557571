"""Fork server: imports the program of the learners once, and forks each learner.

The imports of a learner take seconds of processor time. This process imports them before it has threads or computes,
and each learner is a fork of it. A process between the two ends at once while the launcher adopts orphans, so that the
learner becomes a child of the launcher: its exit status, signals, process group, open files and death with the launcher
are those of a process that the launcher has started itself. The launcher falls back to new interpreters on systems
without such adoption, and if a library has started a thread or opened a device at its import: a fork would copy a lock
that the thread holds, and could not use the device.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import logging
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy

from murmur.worlds.process.environment import renew_variables
from murmur.worlds.process.signals import die_with_parent, ignore_until_ready
from murmur.worlds.process.wire_format import exactly

log = logging.getLogger(__name__)
LENGTH_BYTES = 4
POLL_SECONDS, ADOPTED_SECONDS, ANSWER_SECONDS = 0.05, 0.0005, 30.0
READY = b"+"
MOST_DESCRIPTORS, MEMORY_DEVICES = 1024, 1  # those looked at; major number of /dev/null and its like
ROOM = "-" * 4096  # makes room in the memory that /proc shows, for the words and the variables of forks


def forks_here() -> bool:
    """True if the system lets a process adopt the orphans of its descendants."""
    return sys.platform.startswith("linux")


class ForkedProcess:
    """A child that `subprocess` has not started, with the methods of its `Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0  # as `Popen`, if other code has waited for it
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            time.sleep(POLL_SECONDS / 10)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The launcher's side of a fork server: starts it, and asks it for processes.

    Args:
        modules: Module with a function `main`, which the processes run, and others to import, if they are found.
        variables: Environment variables with which the modules are imported.
        files: Descriptors of open files that the processes inherit.
    """

    def __init__(self, modules: Sequence[str], variables: Mapping[str, str], files: Sequence[int]) -> None:
        self._line, theirs = socket.socketpair()
        self._module = modules[0]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), *modules, ROOM],
                env={**variables, "ROOM": ROOM},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *files],
                preexec_fn=begin_detached,  # noqa: PLW1509 - the other thread of a launcher only waits for signals
            )
        self._line.settimeout(POLL_SECONDS)
        self._ready = False

    def await_ready(self, asked: Callable[[], bool]) -> bool:
        """Wait until it has imported the module; False if it cannot fork, or this process is `asked` to stop."""
        while not self._ready and not asked():
            try:
                self._ready = self._line.recv(1) == READY
            except TimeoutError:
                continue
            except OSError:
                return False
            if not self._ready:
                return False
        return self._ready

    def fork(self, words: Sequence[str], variables: Mapping[str, str]) -> ForkedProcess | None:
        """Start a process with these arguments and environment variables; None if the server has failed."""
        words = [sys.executable, "-m", self._module, *words]
        request = json.dumps({"words": words, "variables": dict(variables), "parent": os.getpid()}).encode()
        self._line.settimeout(ANSWER_SECONDS)
        try:
            with _adopting():  # from before the request: the process between may end at once
                self._line.sendall(len(request).to_bytes(LENGTH_BYTES, "big") + request)
                return ForkedProcess(int.from_bytes(exactly(self._line, LENGTH_BYTES), "big"))
        except (OSError, EOFError) as error:
            log.warning("learners are started as new interpreters: the process that forks them fails (%s)", error)
            return None

    def close(self) -> None:
        """End the server; the processes go on."""
        self._line.close()
        self._process.kill()
        self._process.wait()


@contextmanager
def _adopting() -> Iterator[None]:
    """Become the parent of orphans among this process's descendants."""
    prctl, set_child_subreaper, get_child_subreaper = ctypes.CDLL(None).prctl, 36, 37
    before = ctypes.c_int()
    prctl(get_child_subreaper, ctypes.byref(before))
    prctl(set_child_subreaper, 1)
    try:
        yield
    finally:
        prctl(set_child_subreaper, before.value)


def begin_detached() -> None:
    """Detach a child from the signals of the process group before its program: it ends with this process."""
    die_with_parent()()
    ignore_until_ready()


def serve(line: socket.socket) -> list[str]:
    """Fork processes on request until the launcher ends; return the arguments of a process, in that process."""
    line.sendall(READY)
    while True:
        try:
            request: dict[str, Any] = json.loads(exactly(line, int.from_bytes(exactly(line, LENGTH_BYTES), "big")))
        except EOFError:
            sys.exit(0)
        ours, theirs = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            child = os.fork()
            if child:
                os.write(theirs, child.to_bytes(LENGTH_BYTES, "big"))
                os._exit(0)
            for file in (ours, theirs, line.detach()):
                os.close(file)
            _become(request, between)
            words: list[str] = request["words"]
            return words
        os.close(theirs)
        os.waitpid(between, 0)  # its child has another parent from here on
        with os.fdopen(ours, "rb") as told:
            line.sendall(told.read(LENGTH_BYTES))


def _become(request: Mapping[str, Any], between: int) -> None:
    """Give a fork what a new interpreter has of its own; it ends if the launcher has."""
    while os.getppid() == between:
        time.sleep(ADOPTED_SECONDS)
    die_with_parent()()
    if os.getppid() != request["parent"]:
        os._exit(1)
    renew_variables(request["variables"])
    _show(request["words"], [f"{name}={value}" for name, value in request["variables"].items()])
    random.seed()
    numpy.random.seed()


def _show(words: Sequence[str], variables: Sequence[str]) -> None:
    """Show words and variables in /proc, in place of those of the fork server."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    words_begin, words_end, variables_begin, variables_end = map(int, fields[45:49])
    for texts, begin, end in ((words, words_begin, words_end), (variables, variables_begin, variables_end)):
        text = b"\0".join(map(os.fsencode, texts))[: end - begin - 1]
        ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def hindrance() -> str:
    """Return what libraries have done at their import that no fork can share; empty: nothing."""
    child = os.fork()  # libraries that can be forked end their threads before it
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    if len(os.listdir("/proc/self/task")) > 1:
        return "starts a thread"
    return "opens a device" if any(map(_is_device, range(3, MOST_DESCRIPTORS))) else ""


def _is_device(descriptor: int) -> bool:
    """True for a device other than those of memory, such as /dev/null."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False  # it is not open
    return stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) != MEMORY_DEVICES


def main() -> None:
    """Import modules, serve, and run the first in each fork. Arguments: descriptor of the socket, modules, room."""
    line = socket.socket(fileno=int(sys.argv[1]))
    module: ModuleType = importlib.import_module(sys.argv[2])
    for name in sys.argv[3:-1]:
        if name in sys.modules or find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    if reason := hindrance():
        sys.exit(f"murmur: learners are started as new interpreters, for a library {reason} at its import")
    gc.collect()
    gc.freeze()  # so that the pages of these objects stay shared
    words = serve(line)
    sys.argv = [str(module.__file__), *words[3:]]
    sys.modules["__main__"] = module
    module.main()


if __name__ == "__main__":
    main()
