"""Python programs in processes that are forked from one that has imported everything: a `subprocess.Popen` for tests.

A start of murmur in a new interpreter takes seconds of processor time, nearly all of it for imports. While
`forked_programs` is in force, `subprocess` takes processes of Python programs (`python -m`, `-c`, or a file) from a
server instead, see `tests.support.fork_server`. They are true children of the process that asks: it waits for them,
signals them, and they have its session, group, limits and signals. The processes that they start come from servers of
their own.

What a fork cannot give gets a new interpreter: options of Python, variables that libraries read when they are imported,
other module paths, and a `preexec_fn` that does more than `Inherited` can say.
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import util
from pathlib import Path
from typing import Any

from tests.support.started_process import Inherited

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
REAL = subprocess.Popen
REAL_SPAWN = util.spawnv_passfds
PARAMETERS = tuple(inspect.signature(REAL._execute_child).parameters)[1:]
ANSWER_SECONDS = 100.0  # of a server, whose start imports everything
SERVER = "from tests.support.fork_server import main; main()"
ROOM = 1 << 16  # bytes for the words and the variables of each program, where /proc shows them
# Libraries read these when they are imported; a program with other values of them is not forked.
READ_AT_IMPORT = ("PYTHON", "LC_", "LANG", "LD_", "TORCH_", "CUDA_", "ATEN_", "MKL_", "DNNL_", "OPENBLAS_", "COVERAGE_")
READ_AT_IMPORT += ("FORCE_COLOR", "NO_COLOR", "TERMINAL_WIDTH")
AT_ANY_TIME = frozenset({"PYTHONUNBUFFERED", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"})


def read_at_import(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that decide at the import of libraries."""
    return {k: v for k, v in variables.items() if k.startswith(READ_AT_IMPORT) and k not in AT_ANY_TIME}


class ForkServer:
    """Client's side of a fork server, which is a child of this process.

    Args:
        line: Connection to a server that runs; None: one is started when it is needed.
        variables: Environment variables with which the server has imported its libraries.
    """

    def __init__(self, line: socket.socket | None = None, variables: Mapping[str, str] | None = None) -> None:
        self._line = line
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._given = dict(os.environ if variables is None else variables)
        self.variables = read_at_import(self._given)

    def program(self, words: Sequence[str], variables: Mapping[str, str]) -> list[str] | None:
        """Return the command of a Python program, without its options; None if it needs an interpreter of its own."""
        own = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        rest = words[1 + len(own) :] if words[1 : 1 + len(own)] == own else words[1:]
        program = words[0] == PYTHON and rest and (rest[0] in ("-c", "-m", "-u") or rest[0][:1] != "-")
        usual = os.getpid() == self._owner and read_at_import(variables) == self.variables
        return [words[0], *rest] if program and usual else None

    def start(
        self,
        words: Sequence[str],
        variables: Mapping[str, str],
        folder: str | None,
        files: Mapping[int, int],
        state: Inherited,
    ) -> int:
        """Start a program and return its process number.

        Args:
            words: Command line.
            variables: Environment variables.
            folder: Working directory; None: that of this process.
            files: Open files of this process, by their numbers in the program.
            state: Other state of the program at its start.
        """
        request = {
            "words": list(words),
            "variables": dict(variables),
            "folder": os.path.join(os.getcwd(), folder or ""),
            "files": list(files),
            "state": asdict(state),
            "parent": os.getpid(),
            "group": os.getpgrp(),
        }
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with self._lock, adopting():  # from before the request: the process between may end at once
                line = self._line = self._line or self._started()
                line.settimeout(ANSWER_SECONDS)
                text = json.dumps(request).encode()
                line.sendall(len(text).to_bytes(8, "big"))
                socket.send_fds(line, [text[:1]], list(files.values()))
                line.sendall(text[1:])
                number = int.from_bytes(receive(line, 8), "big")
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if number == 0:
            raise BlockingIOError("the fork server has ended")
        return number

    def _started(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        padding = "x" * ROOM
        words = [PYTHON, "-c", SERVER, str(theirs.fileno()), padding]
        variables = {**self._given, "PADDING": padding, "OPENBLAS_NUM_THREADS": "1"}
        for name in ("OMP_NUM_THREADS", "RANK"):
            variables.pop(name, None)
        with theirs:
            self._server = REAL(words, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        return ours

    def close(self) -> None:
        """End the server."""
        if self._line is not None:
            self._line.close()
            self._server.wait(30)


def receive(line: socket.socket, size: int) -> bytes:
    """Return so many bytes; fewer if the other side has ended.

    Raises:
        TimeoutError: The other side is silent.
    """
    data = b""
    while len(data) < size and (more := line.recv(size - len(data))):
        data += more
    return data


def own_variables() -> dict[str, str]:
    """Return the variables that a new process inherits: those of `os.environ`, and what libraries have set."""
    entries, found = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ"), {}
    for entry in itertools.takewhile(lambda entry: entry is not None, entries):
        name, _, value = os.fsdecode(entry).partition("=")
        found[name] = value
    return found


@contextmanager
def adopting() -> Iterator[None]:
    """Become the parent of orphans among this process's descendants."""
    prctl, subreaper = ctypes.CDLL(None).prctl, 36
    prctl(subreaper, 1)
    try:
        yield
    finally:
        prctl(subreaper, 0)


def install(server: ForkServer) -> None:
    """Let `subprocess` and `multiprocessing` of this process take Python programs from a server."""

    class Popen(REAL):  # type: ignore[type-arg, misc]
        """`subprocess.Popen` whose Python programs are forked by the server."""

        def _execute_child(self, *arguments: Any) -> None:
            given = dict(zip(PARAMETERS, arguments, strict=True))
            pid = _forked(server, given)
            if pid is None:
                super()._execute_child(*arguments)
                return
            self.pid, self._child_created = pid, True
            names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(given[name] for name in names))

    def spawn(path: bytes, words: Sequence[str], files: Sequence[int]) -> int:
        variables = own_variables()
        program = server.program([os.fsdecode(word) for word in words], variables)
        if program is None or "--multiprocessing-fork" not in program:
            return REAL_SPAWN(path, words, files)  # type: ignore[no-any-return]
        passed = {number: number for number in (0, 1, 2, *files)}
        return server.start(program, variables, None, passed, Inherited.of_this_process())

    subprocess.Popen = Popen  # type: ignore[misc]
    util.spawnv_passfds = spawn


def uninstall() -> None:
    """Undo `install`."""
    subprocess.Popen = REAL  # type: ignore[misc]
    util.spawnv_passfds = REAL_SPAWN


def _forked(server: ForkServer, given: Mapping[str, Any]) -> int | None:
    """Start the program of `Popen`'s arguments; None if it needs an interpreter of its own."""
    words = [given["args"]] if isinstance(given["args"], str | bytes | os.PathLike) else list(given["args"])
    variables = own_variables() if given["env"] is None else given["env"]
    variables = {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()}
    program = server.program([os.fsdecode(word) for word in words], variables)
    usual = all(given[name] in (None, -1, False) for name in ("executable", "gid", "gids", "uid", "umask", "shell"))
    if program is None or not (usual and given["close_fds"] and given["restore_signals"]):
        return None
    if given["preexec_fn"] is None:
        state: Inherited | None = Inherited.of_this_process(
            session=given["start_new_session"], group=given["process_group"] == 0
        )
    else:
        state = Inherited.after(given["preexec_fn"])
    folder = None if given["cwd"] is None else os.fsdecode(given["cwd"])
    if state is None or given["process_group"] not in (-1, None, 0) or not os.path.isdir(folder or "."):
        return None
    streams = {0: given["p2cread"], 1: given["c2pwrite"], 2: given["errwrite"]}
    files = {n: n if own == -1 else own for n, own in streams.items()} | {n: n for n in given["pass_fds"]}
    try:
        for number in files.values():
            os.fstat(number)
    except OSError:
        return None  # a standard stream is closed
    return server.start(program, variables, folder, files, state)
