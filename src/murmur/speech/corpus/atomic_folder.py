"""Writes a folder atomically: under a temporary name beside its place, then renamed; the old one stays until then."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Provide an empty folder that replaces `out` at the end of the block, or is removed after an error.

    If two programs write the same `out`, the folder of the later one stays. Temporary folders of killed programs of
    this host are removed. A folder that such a program had moved aside without a replacement is moved back. A symbolic
    link stays, and the folder that it names is replaced.

    Raises:
        OSError: the folder cannot be made, or cannot replace `out`, as at a mount point.
    """
    out = Path(os.path.realpath(out))
    if os.path.ismount(out):  # the system refuses to rename it, but only after all work
        raise OSError(errno.EBUSY, "is a mount point, which cannot be replaced: name a folder in it", str(out))
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
                continue  # another program has moved it
        try:
            new.rename(out)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            continue  # another program was faster; the later folder stays
        return


def _beside(out: Path, what: str) -> Path:
    return out.with_name(f".{out.name}.{what}-{socket.gethostname()}-{os.getpid()}")


def _tidy(out: Path) -> None:
    for what in ("old", "new"):
        stem = f".{out.name}.{what}-{socket.gethostname()}-"
        for left in sorted(path for path in out.parent.iterdir() if path.name.startswith(stem)):
            pid = left.name.removeprefix(stem)
            if not pid.isdigit() or (int(pid) != os.getpid() and _is_running(int(pid))):
                continue
            if what == "old" and not out.exists():
                left.rename(out)
            else:
                shutil.rmtree(left, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # a process of another user
    return True
