"""Text that a terminal only prints: file names, words and file contents may hold sequences that it would obey.

An escape sequence in a message can hide lines, forge them, or change the terminal. Every message leaves the program
through these functions, which write such characters as escapes.
"""

from __future__ import annotations

import logging
import re
import sys

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
