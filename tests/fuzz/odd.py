"""Odd kinds of content: numbers that are none, deep nesting, control characters, and things that are no files.

Seeds of the plain mutations keep their cases: these are targets of their own.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from random import Random

NUMBERS = (
    *(b"1e400", b"-1e400", b"NaN", b"Infinity", b"-Infinity", b"-1", b"0", b"1.5", b"true", b"null", b'""', b"-0.0"),
    *(b"9" * 400, b"9" * 5000, b"1" + b"0" * 18, b"1e18", b"1e308", b"[]", b"{}", b'"1"', b"9223372036854775808"),
)
NESTED = ((b"[", b"]"), (b'{"a":', b"}"), (b"{ ", b" }"), (b"(", b")"), (b"{ a / ", b" }"))
DEPTHS = (20, 200, 2000, 100_000)
CONTROLS = (b"\x1b[2J", b"\x1b]0;x\x07", b"\x00", b"\r", b"\x9b", "\u202e".encode(), "\u2028".encode(), b"\x7f")
KINDS = ("fifo", "folder", "socket", "dangling", "endless", "loop")
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
WORD = re.compile(rb"[A-Za-z]{2,}")


class NoFile(bytes):
    """Something of one of `KINDS` in the place of a file."""

    def plant(self, path: Path) -> None:
        """Make it."""
        kind = self.decode()
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as line:
                line.bind(os.path.relpath(path) if len(str(path)) > 100 else str(path))
        else:
            path.symlink_to({"dangling": "nowhere", "endless": "/dev/zero", "loop": path.name}[kind])


def odd(random: Random, files: dict[str, bytes], plants: bool) -> None:
    """Change one of the files, or with `plants` put something else in its place."""
    name = random.choice(sorted(files))
    data = files[name]
    chance = random.random()
    if plants and chance < 0.25:
        files[name] = NoFile(random.choice(KINDS).encode())
    elif chance < 0.6:
        files[name] = _at(random, NUMBER, data, random.choice(NUMBERS))
    elif chance < 0.8:
        first, last = random.choice(NESTED)
        depth = random.choice(DEPTHS)
        closed = last * depth if random.random() < 0.7 else b""
        files[name] = _at(random, random.choice((NUMBER, WORD)), data, first * depth + b"1" + closed)
    else:
        at = random.randrange(len(data) + 1)
        files[name] = data[:at] + random.choice(CONTROLS) + data[at:]


def _at(random: Random, what: re.Pattern[bytes], data: bytes, new: bytes) -> bytes:
    """The data with one match replaced; a whole file without one."""
    found = list(what.finditer(data))
    if not found:
        return new
    place = random.choice(found)
    return data[: place.start()] + new + data[place.end() :]
