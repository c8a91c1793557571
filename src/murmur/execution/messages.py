"""Messages told less often: repeated warnings are told once and counted, lines of C++ libraries are kept back.

The libraries have no option for it, so the file descriptors 1 and 2 of the process are redirected for the time of the
call. Other lines that arrive meanwhile, from another thread for one, are written afterwards.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import IO

SHOWN = 3
KIND = "murmur_kind"  # attributes of a log record: the kind of its message, and the decision about it
PASSES = "murmur_passes"


@dataclass
class _Kind:
    """Messages of one kind: how often each of those shown came, the number of others, and the last of them."""

    shown: dict[str, int] = field(default_factory=dict)
    others: int = 0
    last: str = ""


class ToldOnce:
    """Decides which messages are told: each text once, three texts of each kind; `tell` gets the counts at the end."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._kinds: dict[str, _Kind] = {}

    def is_new(self, text: str, kind: str = "") -> bool:
        """Count a message; return True if it is to be told. Its kind is its text without digits by default."""
        known = self._kinds.setdefault(kind or re.sub(r"\d", "", text), _Kind())
        if text in known.shown:
            known.shown[text] += 1
            return False
        if len(known.shown) < SHOWN:
            known.shown[text] = 1
            return True
        known.others, known.last = known.others + 1, text
        return False

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide about a warning of the log, once for all handlers; other levels pass."""
        if record.levelno != logging.WARNING:
            return True
        if not hasattr(record, PASSES):
            template = str(getattr(record, KIND, record.msg))
            kind = template if re.search(r"[a-z]{3}", re.sub(r"%[\w.]+", "", template)) else ""
            setattr(record, PASSES, self.is_new(record.getMessage(), kind))
        return bool(getattr(record, PASSES))

    def end(self) -> None:
        """Tell the counts of the messages that were not told each time."""
        kinds, self._kinds = self._kinds, {}
        for kind in kinds.values():
            for text, count in kind.shown.items():
                if count > 1:
                    self._tell(f"{count} times in all: {text}")
            if kind.others:
                self._tell(f"{kind.others} more like this: {kind.last}")


@contextmanager
def told_once(tell: Callable[[str], None]) -> Iterator[ToldOnce]:
    """Tell each warning of the log once until the block ends, then the counts by `tell`."""
    told = ToldOnce(tell)
    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(told)
    try:
        yield told
    finally:
        for handler in handlers:
            handler.removeFilter(told)
        told.end()


# Kaldi and its parts: a line with the place in the source, then one with the level; OpenFst: the level alone.
LIBRARY_LINE = re.compile(
    rb"\S*\.(cc|h|cpp|cu):.*\d+\)?\s*|\[[DIWEF]\] .*|(LOG|VLOG\[\d+\]|WARNING|ERROR|ASSERTION_FAILED) ?\(.*"
    rb"|(DEBUG|INFO|LOG|WARNING|ERROR|FATAL): .*|\s*"
)


@contextmanager
def library_lines_kept() -> Iterator[None]:
    """Keep back what a library writes to stdout and stderr until the block ends; show it if the block raises."""
    with ExitStack() as stack:
        files = {number: stack.enter_context(tempfile.TemporaryFile()) for number in (1, 2) if _is_open(number)}
        saved = {number: os.dup(number) for number in files}
        failed = True
        try:
            _flush()
            for number, file in files.items():
                os.dup2(file.fileno(), number)
            yield
            failed = False
        finally:
            _flush()
            for number, own in saved.items():
                os.dup2(own, number)
                os.close(own)
            for number, file in files.items():
                _write(number, file, failed)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def _write(number: int, file: IO[bytes], failed: bool) -> None:
    """Write the kept lines: all of them after a failure, else those that no library has written."""
    file.seek(0)
    for line in file:
        if failed or not LIBRARY_LINE.fullmatch(line.rstrip(b"\r\n")):
            os.write(number, line)
