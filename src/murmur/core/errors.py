"""Errors that a caller can cause and correct. No import of torch: a message must not take seconds."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from murmur.core.printable import printable

WRITING: Mapping[int, str] = {
    errno.ENOSPC: "the disk is full: make room, and go on (with --resume, where the command has it)",
    errno.EDQUOT: "your quota is used up: make room, and go on (with --resume, where the command has it)",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.EACCES: "you may not write there: change its permissions, or choose another folder",
    errno.EPERM: "you may not write there: change its permissions, or choose another folder",
}
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
PATH_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTEMPTY),
    *(errno.ENXIO, errno.ENODEV, errno.EIO, errno.ESTALE),  # sockets, devices without a driver, failing disks
)


def not_written(path: Path, error: OSError, size: int | None = None) -> OSError:
    """Return the error for a file that cannot be written, with its name, its size if it is known, and a remedy."""
    of = "" if size is None else f" ({size} bytes)"
    what = WRITING.get(error.errno or 0, error.strerror or str(error))
    return OSError(error.errno, f"{path}{of} cannot be written: {what}")


class SettingError(ValueError):
    """A setting has an unknown name or an invalid value."""


class DamagedCheckpoint(RuntimeError):
    """A file of a checkpoint differs from the one that was written."""


class IncompleteRun(RuntimeError):
    """A run has ended without computing every minibatch of its budget exactly once.

    Attributes:
        lost: True if a lost learner has left them, so that the run can be resumed.
    """

    def __init__(self, message: str, lost: bool = False) -> None:
        super().__init__(message)
        self.lost = lost


# Errors that a user can cause and correct. SettingError and CorpusError are ValueErrors.
USER_ERRORS = (
    *(ValueError, DamagedCheckpoint),
    *(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError),
)


def user_message(error: BaseException) -> str | None:
    """Return the message, with a remedy, of an error that a user can cause and correct; None for any other error.

    A class of errors that is not among `USER_ERRORS` declares `of_user = True`, as that of a package below this one.
    """
    known = isinstance(error, USER_ERRORS) or getattr(error, "of_user", False)
    if not known and not (isinstance(error, OSError) and error.errno in PATH_ERRORS):
        return None
    remedy = WRITING.get(error.errno or 0) if isinstance(error, OSError) else None
    return printable(str(error) if remedy is None or remedy in str(error) else f"{error}: {remedy}")


def nearest(word: str, known: Sequence[str]) -> str:
    """Return the end of a message about an unknown word: the nearest known one, or all known ones."""
    by_lower = {k.lower(): k for k in known}
    close = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.4)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else (f"; there are {', '.join(known)}" if known else "")
