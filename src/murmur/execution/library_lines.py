"""Lines that libraries of C++ write to the terminal: kept back, and shown if the call fails.

The libraries have no option for it, so the file descriptors 1 and 2 of the process are redirected for the time of the
call. Other lines that arrive meanwhile, from another thread for one, are written afterwards.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO

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
    """Flush the buffers of Python and of C."""
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
