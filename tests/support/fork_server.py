"""Server that forks Python programs from a process that has imported everything.

It answers requests of its parent (`tests.support.forked_python`) on a socket: each is a program, which becomes a child
of the parent. For that, a process between the two ends at once, while the parent adopts orphans. Everything that an
interpreter sets up at its start is set up here again: streams, words, variables, module paths, `__main__`, signals.

The server stays single-threaded. Each program has a server of its own beside it, forked before it runs anything, for
the processes that it starts.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import numpy
import torch

from tests.support.forked_python import ForkServer, install, read_at_import
from tests.support.started_process import Inherited, die_with_parent

PACKAGES = ("murmur", "murmur_papers")
LIBRARIES = (
    *("scipy.signal", "scipy.sparse", "scipy.special", "lhotse", "soundfile", "soxr", "jiwer", "kaldialign"),
    *("kaldifst", "kaldilm", "kaldi_hmm_gmm", "kaldi_decoder", "kaldi_native_io", "jinja2"),
    *("torch.distributed.run", "torch.distributed.elastic.agent.server.local_elastic_agent", "torch.optim.swa_utils"),
    "torch.distributed.fsdp",
    *("multiprocessing.spawn", "rich.progress", "rich.traceback", "typer.rich_utils", "numpy.random", "pdb"),
)


HIGH = 400  # numbers of this file's own sockets in programs begin here


@dataclass(frozen=True)
class Program:
    """A program as it is asked for, in its process."""

    words: Sequence[str]
    variables: Mapping[str, str]

    def run(self) -> None:
        """Run the program as the main module."""
        words = list(self.words[1:])
        live = words[0] == "-u" or bool(self.variables.get("PYTHONUNBUFFERED"))
        words = words[words[0] == "-u" :]
        open_streams(live)
        main = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = __builtins__
        sys.modules["__main__"] = main
        sys.orig_argv = list(self.words)
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            sys.path.insert(0, "")
            exec(compile(words[1], "<string>", "exec"), main.__dict__)
        elif words[0] == "-m":
            sys.argv = ["-m", *words[2:]]
            sys.path.insert(0, os.getcwd())
            sys.modules.pop(words[1], None)  # as it is not imported before it runs
            runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        else:
            sys.argv = words
            sys.path.insert(0, os.path.dirname(os.path.realpath(words[0])))
            main.__file__ = words[0]
            exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), main.__dict__)


def open_streams(live: bool) -> None:
    """Open the standard streams as an interpreter does at its start."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        mode = "r" if number == 0 else "w"
        raw = io.FileIO(number, mode, closefd=False)
        raw.name = f"<{name}>"
        terminal = raw.isatty()
        through = live and number > 0
        buffer: Any = raw
        if number == 0:
            buffer = io.BufferedReader(raw)
        elif not live:
            buffer = io.BufferedWriter(raw)
        stream = io.TextIOWrapper(
            buffer,
            old.encoding,
            old.errors,
            newline="\n",
            line_buffering=not through and (terminal or number == 2),
            write_through=through,
        )
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def end(program: Program) -> NoReturn:
    """Run a program and end its process, as an interpreter does, but without freeing each of its objects."""
    status, interrupted = 0, False
    try:
        program.run()
    except SystemExit as asked:
        status = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
        if asked.code is not None and not isinstance(asked.code, int):
            print(asked.code, file=sys.stderr)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not Program.run.__code__:
            trace = trace.tb_next
        error = error.with_traceback(trace and trace.tb_next)
        sys.excepthook(type(error), error, error.__traceback__)
        status, interrupted = 1, isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            status = 120  # as an interpreter's
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def serve(line: socket.socket, start: Start) -> Program:
    """Answer requests until the parent ends. Return in the processes of programs only."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # while it is ignored, no process can be waited for
    while True:
        head = line.recv(8, socket.MSG_WAITALL)
        if not head:
            os._exit(0)
        size = int.from_bytes(head, "big")
        first, files, _, _ = socket.recv_fds(line, 1, 250)
        request = json.loads(first + line.recv(size - 1, socket.MSG_WAITALL))
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            try:
                return start.begin(line, request, files)
            except BaseException:
                traceback.print_exc()
                line.sendall(bytes(8))
                os._exit(1)
        for file in files:
            os.close(file)
        os.waitpid(between, 0)


@dataclass(frozen=True)
class Start:
    """State of the interpreter when programs are forked.

    Attributes:
        path: Module paths of a program, without the first.
        variables: Environment variables with which libraries were imported.
        areas: Begin and end of the memory of words and of variables that /proc shows.
        threads: Compute threads of PyTorch, unless OMP_NUM_THREADS gives another number.
    """

    path: Sequence[str]
    variables: Mapping[str, str]
    areas: tuple[int, int, int, int]
    threads: int

    def begin(self, line: socket.socket, request: Mapping[str, Any], files: Sequence[int]) -> Program:
        """Turn this process into the one of a program."""
        while os.getppid() != request["parent"]:
            if os.getppid() == 1:
                with suppress(OSError):  # the parent has ended, or adopts no orphans
                    line.sendall(bytes(8))
                os._exit(1)
            time.sleep(0.0005)
        words, variables = request["words"], request["variables"]
        state = Inherited.read(request["state"])
        state.take(request["group"])
        own, theirs = socket.socketpair()
        if os.fork() == 0:
            die_with_parent(signal.SIGKILL)
            for file in [*files, own.detach(), line.detach()]:
                os.close(file)
            return serve(theirs, self)
        theirs.close()
        line, own = place_files(dict(zip(request["files"], files, strict=True)), line, own)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(variables)
        write_area(*self.areas[:2], words)
        write_area(*self.areas[2:], [f"{name}={value}" for name, value in variables.items()])
        self._forget(variables)
        install(ForkServer(own, self.variables))
        line.sendall(os.getpid().to_bytes(8, "big"))
        line.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, state.blocked)
        return Program(words, variables)

    def _forget(self, variables: Mapping[str, str]) -> None:
        """Undo what imports have read or drawn, which differs between interpreters."""
        sys.path[:] = self.path
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        tempfile.tempdir = None
        numpy.random.seed()
        threads = int(variables.get("OMP_NUM_THREADS", self.threads))
        if threads != self.threads:
            torch.set_num_threads(threads)


def place_files(files: Mapping[int, int], *kept: socket.socket) -> list[socket.socket]:
    """Give open files the numbers that a program expects, close all others, and return `kept`, out of the way."""
    high = {number: fcntl.fcntl(file, fcntl.F_DUPFD, HIGH) for number, file in files.items()}
    moved = [socket.socket(fileno=fcntl.fcntl(each.detach(), fcntl.F_DUPFD_CLOEXEC, HIGH)) for each in kept]
    os.closerange(0, HIGH)
    for number, file in high.items():
        os.dup2(file, number)
        os.close(file)
    return moved


def write_area(begin: int, end: int, texts: Sequence[str]) -> None:
    """Write texts where /proc shows the words or the variables of this process."""
    text = b"\0".join(os.fsencode(text) for text in texts)
    ctypes.memmove(begin, text[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)


def import_all() -> None:
    """Import what programs import. What cannot be imported is left out; a program that needs it then tells why."""
    names = list(LIBRARIES)
    for package in filter(find_spec, PACKAGES):
        modules = pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.", lambda name: None)
        names += [module.name for module in modules if not module.name.endswith("__main__")]
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)


def main() -> NoReturn:
    """Import everything, serve, and be each program in its process."""
    line = socket.socket(fileno=int(sys.argv[1]))
    path = sys.path[1:]
    variables = {k: v for k, v in os.environ.items() if k not in ("PADDING", "OPENBLAS_NUM_THREADS")}
    import_all()
    if threading.active_count() > 1 or len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("a library has started a thread at its import, so that programs cannot be forked")
    a, b, c, d = map(int, Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[45:49])
    start = Start(path, read_at_import(variables), (a, b, c, d), torch.get_num_threads())
    gc.collect()
    gc.freeze()
    end(serve(line, start))
