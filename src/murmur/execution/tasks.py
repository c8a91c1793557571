"""One task as any engine runs it: its tools, opened once in each process, its input, and the demands on the process.

Tasks travel over the engine's own connection and are never read from a file. The input is pickled twice, so that a
process of another version is refused before it reads anything but the demands.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from hashlib import blake2b
from importlib.metadata import version
from io import StringIO
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import torch

from murmur.execution.messages import KIND

MEMORY = Path("/proc/meminfo")
Told = tuple[str, int, str, str]  # logger, level, kind and text of a warning


class UnfitWorker(RuntimeError):
    """A worker lacks a file, a version or the memory that its tasks need; a command shows no traceback."""

    of_user = True  # told by its message alone (murmur.core.errors.user_message)


@dataclass(frozen=True)
class Tools:
    """A pickled function that opens the tools of many tasks; a process that has opened them needs the digest alone."""

    digest: str
    content: bytes | None = field(repr=False, compare=False)

    @staticmethod
    def of(opened: Callable[[], Callable[[Any], Any]]) -> Tools:
        content = pickled(opened)
        return Tools(blake2b(content).hexdigest(), content)


class Answer(NamedTuple):
    """The result of a task, and the warnings of the log that are not told in another way.

    Attributes:
        lacks_tools: True if the process has not opened the tools, whose content was left out; there is no result.
    """

    done: Any = None
    warnings: tuple[Told, ...] = ()
    lacks_tools: bool = False


@dataclass(frozen=True)
class Demands:
    """Versions, files and memory that the process of a command has, and those of its workers must have.

    Attributes:
        program: digest of murmur's own code.
        folder: working folder, which tasks run in.
        files: paths with the digests of their contents.
        memory_bytes: memory that a task may need.
    """

    murmur: str
    torch: str
    program: str
    folder: str
    files: tuple[tuple[str, str], ...] = ()
    memory_bytes: int = 0

    @staticmethod
    def of_this_process(files: Iterable[Path] = (), memory_bytes: int = 0) -> Demands:
        found = tuple((str(path.absolute()), file_digest(path)) for path in files)
        return Demands(version("murmur-asr"), torch.__version__, program_digest(), os.getcwd(), found, memory_bytes)


@dataclass(frozen=True)
class Call:
    """A task: one input for tools. With demands, the process is checked, and its warnings come with the answer."""

    tools: Tools
    given: bytes = field(repr=False)
    demands: Demands | None = None

    __name__ = "murmur"  # in the records of an engine

    def open(self) -> None:
        """Open the tools, unless they are open or their content is not there."""
        with suppress(_ToolsMissing), _noted():
            self._work()

    def __call__(self) -> Answer:
        try:
            with _noted():
                if self.demands is None:
                    return self._answer()
                check_process(self.demands)
                with chdir(self.demands.folder), _warnings() as warnings:
                    return self._answer()._replace(warnings=tuple(warnings))
        except _ToolsMissing:
            return Answer(lacks_tools=True)

    def _work(self) -> Callable[[Any], Any]:
        return _opened(self.tools, () if self.demands is None else self.demands.files)

    def _answer(self) -> Answer:
        return Answer(self._work()(unpickled(self.given)))


class _ToolsMissing(Exception):
    pass


@contextmanager
def _noted() -> Iterator[None]:
    """Add the traceback of this process to an error, which is raised again in the process of the command."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, UnfitWorker | _ToolsMissing):
            error.add_note(traceback.format_exc())
        raise


@lru_cache(maxsize=1)  # the tools of one step of the work: they may be large
def _opened(tools: Tools, _files: tuple[tuple[str, str], ...]) -> Callable[[Any], Any]:
    """The work of the tools, opened again when one of their files, paths with digests, has another content."""
    if tools.content is None:
        raise _ToolsMissing
    with redirect_stderr(StringIO()):  # the process of the command has told the same
        work: Callable[[Any], Any] = unpickled(tools.content)()
    return work


def pickled(value: object) -> bytes:
    return bytes(ForkingPickler.dumps(value))


def unpickled(content: bytes) -> Any:
    return ForkingPickler.loads(content)


@lru_cache(maxsize=4)
def check_process(demands: Demands) -> None:
    """Check that this process has what tasks need, once for the same demands.

    Raises:
        UnfitWorker: it has not; the message names the process.
    """
    torch.set_num_threads(1)
    for what, here, wanted in (
        ("murmur", version("murmur-asr"), demands.murmur),
        ("torch", torch.__version__, demands.torch),
        ("murmur of digest", program_digest(), demands.program),
    ):
        if here != wanted:
            raise unfit(f"has {what} {here} where the command has {wanted}: install the same there")
    if not Path(demands.folder).is_dir():
        raise unfit(f"does not see {demands.folder}: commands and workers need the same folders at the same paths")
    for path, digest in demands.files:
        if not Path(path).is_file() or file_digest(Path(path)) != digest:
            raise unfit(f"has no {path}, or another one than the command")
    if (free := free_bytes()) < demands.memory_bytes:
        raise unfit(f"has {free / 1e9:.2f} GB of memory left, {demands.memory_bytes / 1e9:.2f} GB are needed")


def unfit(fault: str) -> UnfitWorker:
    return UnfitWorker(f"worker {socket.gethostname()}, process {os.getpid()}, {fault}")


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(blake2b, digest_size=16)).hexdigest()


@cache
def program_digest() -> str:
    """Digest of the Python files of murmur: workers with other code would compute other bits."""
    root, whole = Path(__file__).parents[1], blake2b(digest_size=8)
    for path in sorted(root.rglob("*.py")):
        whole.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return whole.hexdigest()


def free_bytes() -> float:
    """Memory that this process can still get, by the kernel and its control group; infinite if neither tells it."""
    found = [float("inf")]
    if MEMORY.is_file():
        found += [int(line.split()[1]) * 1024.0 for line in MEMORY.read_text().splitlines() if "MemAvailable" in line]
    group = Path("/sys/fs/cgroup")
    limit, used = group / "memory.max", group / "memory.stat"
    if limit.is_file() and used.is_file() and (most := limit.read_text().strip()).isdigit():
        found.append(float(int(most) - int(used.read_text().split()[1])))  # "anon": what no cache could give back
    return min(found)


def told(record: logging.LogRecord) -> Told:
    """A warning as values that pickle whatever its arguments are."""
    return record.name, record.levelno, str(record.msg), record.getMessage()


def tell_again(name: str, level: int, kind: str, text: str) -> None:
    """Give a warning of another process to the log of this one."""
    record = logging.LogRecord(name, level, "", 0, text, None, None)
    setattr(record, KIND, kind)
    logging.getLogger(name).handle(record)


class _Kept(logging.Handler):
    """Keeps the warnings of a task."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.warnings: list[Told] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("distributed"):  # the engine's own
            self.warnings.append(told(record))


@contextmanager
def _warnings() -> Iterator[list[Told]]:
    kept = _Kept()
    logging.getLogger().addHandler(kept)
    try:
        yield kept.warnings
    finally:
        logging.getLogger().removeHandler(kept)
