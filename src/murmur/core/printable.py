"""Text that a terminal only prints: file names, words and file contents may hold sequences that it would obey.

An escape sequence in a message can hide lines, forge them, or change the terminal. Every message leaves the program
through these functions, which write such characters as escapes.
"""

from __future__ import annotations

import codecs
import errno
import io
import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

# Control characters but for tabs and ends of lines, other separators of lines, changes of the direction of writing,
# and halves of characters, which no encoding has.
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
FORMAT = "murmur: %(message)s"


def printable(text: str) -> str:
    """Return a text with the characters that a terminal obeys, or cannot print, as escapes; tabs and lines stay."""
    return OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def say(text: str, err: bool = False) -> None:
    """Print a text of one or more lines, on standard error if `err`."""
    print(printable(text), file=sys.stderr if err else sys.stdout, flush=True)


class PrintableLines(logging.Formatter):
    """Format of log lines without characters that a terminal obeys."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback if the record has one."""
        return printable(super().format(record))


def log_to_stderr() -> None:
    """Send the log of this program to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableLines(FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


REPLACED = "murmur.replaced"  # name of the error handler of standard output
REMEDIES: Mapping[int | None, str] = {
    errno.EBADF: "it is closed: redirect it, e.g. to /dev/null",
    errno.EPIPE: "the program that reads it has ended",
    errno.ENOSPC: "the disk is full: make room",
    errno.EDQUOT: "your quota is used up: make room",
}


class OutputError(OSError):
    """Standard output cannot be written."""

    of_user = True


class _Output(io.FileIO):
    """Standard output, with errors that name it."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            why = REMEDIES.get(error.errno, error.strerror)
            raise OutputError(f"standard output cannot be written: {why}") from error


class _Replaced:
    """Error handler of an encoding: writes characters that it lacks as escapes, and tells the first one."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self.told = False

    def __call__(self, error: UnicodeError) -> tuple[str | bytes, int]:
        if not self.told and isinstance(error, UnicodeEncodeError):
            self.told = True
            first = error.object[error.start]
            escape = first.encode("ascii", "backslashreplace").decode()
            sys.stderr.write(
                f"murmur: standard output is {self.encoding}, which lacks {escape} and perhaps others: they are written"
                " as such escapes; set PYTHONIOENCODING=utf-8 for UTF-8\n"
            )
        return codecs.backslashreplace_errors(error)


def open_standard_streams() -> None:
    """Open closed streams, and replace standard output by one that raises `OutputError` and lacks no character."""
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, mode), True)  # the lowest free number, which is this one
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open to the end
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    encoding = "utf-8" if sys.stdout is None else sys.stdout.encoding
    errors = "strict" if sys.stdout is None else sys.stdout.errors
    if codecs.lookup(encoding).name != "utf-8":
        codecs.register_error(REPLACED, _Replaced(encoding))
        errors = REPLACED
    raw = _Output(1, "w", closefd=False)
    live = bool(sys.stdout is not None and sys.stdout.line_buffering)
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=live)


def drop_output() -> None:
    """Drop what standard output has not written, so that the end of the program does not try it again."""
    number = os.open(os.devnull, os.O_WRONLY)
    os.dup2(number, 1)
    os.close(number)
