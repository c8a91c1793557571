"""Regular files of a folder that other programs may change: no link is written through, no FIFO is waited for.

A link in a run's folder could lead a write to any file of the user. A FIFO, a socket or a device in the place of a
file would block its reader for ever, or never end.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from murmur.core.errors import SettingError

WRITES = os.O_WRONLY | os.O_RDWR
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
)


class NotPlainFile(SettingError):
    """A link, a folder, a FIFO, a socket or a device lies in the place of a file."""


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file as `os.open` does, and return its descriptor.

    A file is read through a symbolic link, and never written through one, nor under a second name (a hard link).

    Raises:
        NotPlainFile: Something else lies there; names it and the remedy.
        OSError: As for `os.open`.
    """
    writes = bool(flags & WRITES)
    try:
        mode = os.stat(path, follow_symlinks=not writes).st_mode
        if not stat.S_ISREG(mode):
            raise NotPlainFile(_refusal(path, mode))  # an open would wait for a FIFO, and may start a device
    except FileNotFoundError:
        pass
    more = os.O_NONBLOCK | (os.O_NOFOLLOW if writes else 0)
    try:
        file = os.open(path, flags & ~os.O_TRUNC | more, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO) and os.path.lexists(path):  # put there since then
            raise NotPlainFile(_refusal(path, os.lstat(path).st_mode)) from error
        raise
    facts = os.fstat(file)
    if not stat.S_ISREG(facts.st_mode) or (writes and facts.st_nlink > 1):
        os.close(file)
        raise NotPlainFile(_refusal(path, facts.st_mode))
    if flags & os.O_TRUNC:
        os.ftruncate(file, 0)
    return file


def check_plain(path: Path) -> None:
    """Raise as `open_plain` does, for a library that opens a file by its name."""
    os.close(open_plain(path))


def read_plain(path: Path) -> bytes:
    """Read a regular file; raises as `open_plain` does."""
    with plain_file(path) as file:
        return file.read()


@contextmanager
def making_sense(path: Path, remedy: str) -> Iterator[None]:
    """Context of code that interprets the content of a file: its errors name the file, and what to do.

    Raises:
        SettingError: The content is not as expected.
    """
    try:
        yield
    except NotPlainFile:
        raise
    except UNREADABLE as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else f"{error}" or type(error).__name__
        told = what if isinstance(error, SettingError) and str(path) in what else f"{path} is damaged ({what})"
        raise SettingError(told if told == what else f"{told}: {remedy}") from error


def read_json(path: Path, remedy: str) -> Any:
    """Read a file of JSON.

    Raises:
        SettingError: It is damaged; names it and the remedy.
        NotPlainFile, OSError: As for `open_plain`.
    """
    with making_sense(path, remedy):
        return json.loads(read_plain(path))


def plain_file(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a regular file for bytes; raises as `open_plain` does."""
    return os.fdopen(open_plain(path, flags), "wb" if flags & WRITES else "rb", buffering=0 if flags & WRITES else -1)


def refuse_link(path: Path, why: str = "") -> None:
    """Raise `NotPlainFile` if a path is a symbolic link; `why` is added to the message."""
    if path.is_symlink():
        raise NotPlainFile(_refusal(path, os.lstat(path).st_mode) + why)


def _refusal(path: Path, mode: int) -> str:
    """Return the message for a path at which no regular file of a single name lies."""
    if stat.S_ISREG(mode):
        return f"{path} has a second name (a hard link), which a write would change too: replace it by a copy"
    what = next((name for is_of, name in KINDS if is_of(mode)), "a device")
    if stat.S_ISLNK(mode):
        return f"{path} is {what} to {os.readlink(path)}, and is not followed: move it away"
    return f"{path} is {what}, not a file: move it away"
