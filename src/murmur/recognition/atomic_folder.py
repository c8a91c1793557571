"""A folder that appears whole: written beside its place and then put there; the one before it stays until then."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """An empty folder to write in; at the end of the block it takes the place of `out`, after an error it is removed.

    Of two programs with one `out` the later one's stays. What programs of this host left when they were killed is
    taken away, and a folder that such a program had just moved aside is put back.

    Raises:
        OSError: the folder cannot be made, or not be put there.
    """
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    _tidy(out)
    new, aside = _beside(out, "new"), _beside(out, "old")
    new.mkdir()
    try:
        yield new
        _put(new, out, aside)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


def _put(new: Path, out: Path, aside: Path) -> None:
    while True:
        if out.exists():
            shutil.rmtree(aside, ignore_errors=True)
            try:
                out.rename(aside)
            except FileNotFoundError:
                continue  # another program has just moved it
        try:
            new.rename(out)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            continue  # another program was faster; of two the later one stays
        return


def _beside(out: Path, what: str) -> Path:
    return out.with_name(f".{out.name}.{what}-{socket.gethostname()}-{os.getpid()}")


def _tidy(out: Path) -> None:
    for what in ("old", "new"):
        stem = f".{out.name}.{what}-{socket.gethostname()}-"
        for left in sorted(path for path in out.parent.iterdir() if path.name.startswith(stem)):
            pid = left.name.removeprefix(stem)
            if not pid.isdigit() or (int(pid) != os.getpid() and _lives(int(pid))):
                continue
            if what == "old" and not out.exists():
                left.rename(out)
            else:
                shutil.rmtree(left, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is another user's
    return True
