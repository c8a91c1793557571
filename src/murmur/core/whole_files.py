"""Files and folders that appear complete: written under another name and then renamed, or read up to the last line.

At every moment, and after a crash, even of the host, the old content or the new one is there in full. Several threads,
processes and hosts may write the same name at the same time: each has a temporary name of its own, and the content of
the one that ends last stays.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from murmur.core.errors import not_written
from murmur.core.plain_files import plain_file

UNFINISHED = ".unfinished-"  # all temporary names of files begin so


def name_beside(path: Path, suffix: str = "") -> Path:
    """Return the temporary name of a file: short, since the file's own name may be as long as the system allows."""
    digest = blake2b(os.fsencode(f"{path.name}/{socket.gethostname()}"), digest_size=6).hexdigest()
    return path.with_name(f"{UNFINISHED}{digest}-{_writer()}{suffix}")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, and the folders that it needs. A symbolic link of that name is replaced, not followed.

    Raises:
        OSError: It cannot be written (a full disk, a read-only folder); the old file is unchanged.
    """
    try:
        _make_folder(path.parent)
    except OSError as error:
        raise not_written(path, error, len(data)) from error
    with replacing(path, size=len(data)) as beside, beside.open("xb") as file:
        file.write(data)


def write_text_whole(path: Path, text: str) -> None:
    """Write a UTF-8 file; a FIFO, a device or a symbolic link stays, and what it leads to is written.

    Raises:
        OSError: As for `in_place_of`.
    """
    with in_place_of(path) as beside:
        beside.write_text(text, encoding="utf-8")


@contextmanager
def in_place_of(path: Path, suffix: str = "") -> Iterator[Path]:
    """Provide the name to write a file to, as `replacing` does, for a path that a user may have given.

    A symbolic link stays: the file that it names is replaced. A FIFO or a device is written itself, since no file may
    take its place.

    Raises:
        OSError: As for `replacing`.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    with replacing(Path(os.path.realpath(path)), suffix) as beside:
        yield beside


@contextmanager
def replacing(path: Path, suffix: str = "", size: int | None = None) -> Iterator[Path]:
    """Provide the name to write a file to, which replaces `path` at the end of the block and is removed after an error.

    Args:
        path: File to write.
        suffix: Suffix of the temporary name, for writers to which it matters.
        size: Bytes of the file, for the message of an error, if they are known.

    Raises:
        OSError: The file cannot be written or renamed; names it.
    """
    beside = name_beside(path, suffix)
    try:
        beside.unlink(missing_ok=True)  # left by a killed program with the same number
        yield beside
        _sync(beside)
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(beside), str(path.parent)):
            raise  # of another file
        raise not_written(path, error, size) from error
    finally:
        with suppress(OSError):  # a folder without write access holds no such file
            beside.unlink(missing_ok=True)


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Provide an empty folder that replaces `out` at the end of the block, or is removed after an error.

    Temporary folders of killed programs of this host are removed. A folder that such a program had moved aside without
    a replacement is moved back. A symbolic link stays, and the folder that it names is replaced.

    Raises:
        OSError: The folder cannot be made, or cannot replace `out`, as at a mount point.
    """
    out = Path(os.path.realpath(out))
    if os.path.ismount(out):  # the system refuses to rename it, but only after all work
        raise OSError(errno.EBUSY, "is a mount point, which cannot be replaced: name a folder in it", str(out))
    out.parent.mkdir(parents=True, exist_ok=True)
    tidy(out)
    new, aside = _beside(out, "new"), _beside(out, "old")
    new.mkdir()
    try:
        yield new
        _put(new, out, aside)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock `.NAME.lock` beside a file or folder, so that one program at a time makes it.

    On a file system without locks, several programs may make it at the same time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with plain_file(path.with_name(f".{path.name}.lock"), os.O_WRONLY | os.O_CREAT) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        except OSError as error:
            logging.getLogger(__name__).info("%s: no lock (%s)", path, error)
        yield


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk: a crash of the host may otherwise lose a new name."""
    _sync(folder)


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Provide the name to write a temporary file to, which gets the name `path` at the end of the block.

    Other processes see the whole file or none. Unlike `replacing` it does not wait for the disk: the file is lost with
    the host.
    """
    beside = name_beside(path)
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def _make_folder(folder: Path) -> None:
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)


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


def _writer() -> str:
    return f"{os.getpid()}-{threading.get_native_id()}"


def _beside(out: Path, what: str) -> Path:
    return out.with_name(f".{out.name}.{what}-{socket.gethostname()}-{_writer()}")


def remove_whole(out: Path) -> None:
    """Remove a folder, for its readers at once: it is renamed first."""
    aside = _beside(out, "new")
    with suppress(FileNotFoundError):
        out.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def tidy(out: Path) -> None:
    """Remove the temporary folders of killed programs of this host for `out`, or move its old content back."""
    for what in ("old", "new"):
        stem = f".{out.name}.{what}-{socket.gethostname()}-"
        for left in sorted(path for path in out.parent.iterdir() if path.name.startswith(stem)):
            writer = left.name.removeprefix(stem)
            pid = writer.partition("-")[0]
            if not pid.isdigit() or (writer != _writer() and _is_running(int(pid))):
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


class FinishedLines:
    """The finished lines of a file that may still grow, as bytes without their line feeds.

    A last line without a line feed is unfinished: it is being written, or its writer was killed. It is no line, even if
    it could be read: `rest` holds it after the iteration.

    Raises:
        NotPlainFile, OSError: As for `open_plain`, at the iteration.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.rest = path, b""

    def __iter__(self) -> Iterator[bytes]:
        self.rest = b""
        with plain_file(self.path) as file:
            for line in file:
                if not line.endswith(b"\n"):
                    self.rest = line
                    return
                yield line[:-1]
