"""What a caller can cause and mend, in words; nothing here needs torch, so a message costs no seconds."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

WRITING: Mapping[int, str] = {
    errno.ENOSPC: "the disk is full: make room, and go on (with --resume, where the command has it)",
    errno.EDQUOT: "your quota is used up: make room, and go on (with --resume, where the command has it)",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.EACCES: "you may not write there: change its permissions, or choose another folder",
    errno.EPERM: "you may not write there: change its permissions, or choose another folder",
}


def not_written(path: Path, size: int, error: OSError) -> OSError:
    """The error of a file that cannot be written, with its name, its bytes and what to do."""
    what = WRITING.get(error.errno or 0, error.strerror or str(error))
    return OSError(error.errno, f"{path} ({size} bytes) cannot be written: {what}")


class SettingError(ValueError):
    """A setting names something that is not there, or gives a value that does not fit."""


class DamagedCheckpoint(RuntimeError):
    """A file of a checkpoint is not what was written."""


class IncompleteRun(RuntimeError):
    """A run has come to its end without having computed every minibatch of its budget exactly once."""


def nearest(word: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown word: the nearest known one, or all that there are."""
    by_lower = {k.lower(): k for k in known}
    close = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.4)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else (f"; there are {', '.join(known)}" if known else "")
