"""A lock on a folder, held by all processes of a run until the last of them ends, and the state of the run.

The lock is an advisory `flock` on the file `.lock`. The first process of a run takes it exclusively, which fails while
any other process holds it. It writes its name into the file and then shares the lock: children inherit the open file,
and learners that were started elsewhere join. The system releases the lock when the last of these processes ends, even
by a kill. On NFS the lock holds between hosts if the server supports locks (a mount without `nolock` or `local_lock`).
On a file system without locks, the run logs one warning and continues without a lock.

The state follows from the lock and from ended.json, which tells the end of the last launch.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

from murmur.core.errors import SettingError
from murmur.core.plain_files import UNREADABLE, NotPlainFile, open_plain, read_plain
from murmur.core.stop_signals import STOPPED_STATUS
from murmur.core.whole_files import write_whole

log = logging.getLogger(__name__)
LOCK = ".lock"
TRY_SECONDS = 1.0  # a reader that tests the lock holds it for a moment
PAUSE_SECONDS = 0.02
MOST_BYTES = 1 << 20  # of a lock file, which names one process
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)
Held = Literal["held", "free", "unknown"]
ENDED = "ended.json"
FAILED = "failed.json"  # reason of a learner's failure, until the launcher ends the run
PEER_LOST_STATUS = 75  # as `murmur train --help` lists it
How = Literal["finished", "stopped", "failed"]
Name = Literal["running", "finished", "stopped", "failed", "killed", "unknown"]
NAMES = ("finished", "stopped", "failed")


@dataclass(frozen=True)
class Holder:
    """Process that took a lock first."""

    pid: int
    host: str
    command: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}: {self.command}"


class FolderLock:
    """Lock held by this process and every child that inherits `descriptor`, until each ends or closes it."""

    def __init__(self, path: Path, descriptor: int, before: bytes) -> None:
        self.path, self.descriptor, self._before = path, descriptor, before

    @classmethod
    def take(cls, path: Path) -> Self:
        """Take the lock for a new run; the error of another holder names it."""
        return cls(path, *_attempts(path, _take))

    @classmethod
    def join(cls, path: Path) -> Self:
        """Share the lock with the processes of a run that has begun."""
        return cls(path, *_attempts(path, _share))

    def restore(self) -> None:
        """Undo what `take` has written, since the run does not begin: the lock is still held."""
        if self._before:
            os.ftruncate(self.descriptor, 0)
            os.pwrite(self.descriptor, self._before, 0)
        else:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock in this process; children that inherited it still hold it."""
        os.close(self.descriptor)


@contextmanager
def locked(path: Path) -> Iterator[FolderLock]:
    """Hold the lock of a file for a block; the error of another holder names its process."""
    lock = FolderLock.take(path)
    try:
        yield lock
    finally:
        lock.close()


def beside(folder: Path) -> Path:
    """Path of the lock file of a folder that is replaced as a whole, and so cannot contain it."""
    folder = folder.absolute()
    return folder.with_name(f".{folder.name}{LOCK}")


def held(path: Path) -> Held:
    """Return the state of a lock; "unknown" without a lock file or without support for locks."""
    try:
        descriptor = open_plain(path)
    except (OSError, NotPlainFile):
        return "unknown"
    try:
        for _ in range(3):  # another reader may be testing the lock
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(PAUSE_SECONDS)
            except OSError:
                return "unknown"
            else:
                return "free"
        return "held"
    finally:
        os.close(descriptor)


def holder_of(path: Path) -> Holder | None:
    """Read from the file which process took the lock first; None if the file names none."""
    try:
        found = json.loads(read_plain(path))
        return Holder(int(found["pid"]), str(found["host"]), str(found["command"]), str(found["since"]))
    except (OSError, *UNREADABLE):
        return None


def _attempts(path: Path, lock: Callable[[int], None]) -> tuple[int, bytes]:
    """Return the descriptor of the locked file, and the content that the file had before; empty for a new file."""
    deadline = time.monotonic() + TRY_SECONDS
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = open_plain(path, os.O_RDWR | os.O_CREAT)
        before = os.pread(descriptor, MOST_BYTES, 0)
        try:
            lock(descriptor)
            if _is_at(descriptor, path):
                return descriptor, before
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                who = holder_of(path)
                raise SettingError(
                    f"{path.parent} is in use by {who or 'another process'}"
                    f" (lock file {path.name}; learners of that run may still be running): wait for its end, end it,"
                    " or give another folder"
                ) from None
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                os.close(descriptor)
                raise
            log.warning("%s cannot be locked (%s): make sure that no other run writes there", path.parent, error)
            return descriptor, before
        os.close(descriptor)
        time.sleep(PAUSE_SECONDS)


def _take(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    here = Holder(os.getpid(), socket.gethostname(), shlex.join(["murmur", *sys.argv[1:]]), _now())
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(asdict(here)).encode(), 0)
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # not atomic: if another process is faster, this raises


def _share(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Ending:
    """Final record of a launch: kind of ending, exit status, reason, and time in UTC."""

    state: How
    status: int
    why: str
    at: str

    @classmethod
    def of(cls, status: int, why: str = "") -> Ending:
        states: dict[int, tuple[How, str]] = {
            0: ("finished", "the run is complete"),
            STOPPED_STATUS: ("stopped", "stopped on request, and saved"),
            PEER_LOST_STATUS: ("failed", "a learner was lost"),
        }
        state, words = states.get(status, ("failed", f"ended with status {status}"))
        return cls(state, status, why or words, datetime.now(UTC).isoformat(timespec="seconds"))


@dataclass(frozen=True)
class RunState:
    """State of a run, with the reason as text."""

    name: Name
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.why})" if self.why else self.name


def state_of(folder: Path) -> RunState:
    """Return the state of the run in a folder.

    It is "unknown" for a run without a lock, and if its lock seems free but was taken on another host: the file system
    may not share locks between hosts.
    """
    ending, lock = read_ending(folder), held(folder / LOCK)
    if ending is not None and ending.state == "finished":
        return RunState("finished")
    if lock == "held":
        return RunState("running")
    if ending is not None:
        return RunState(ending.state, f"{ending.why}, {ending.at}")
    holder = holder_of(folder / LOCK)
    if lock == "free" and (holder is None or holder.host == socket.gethostname()):
        return RunState("killed", "no process works on it, and it has no final record")
    return RunState("unknown")


def read_ending(folder: Path) -> Ending | None:
    try:
        found = json.loads(read_plain(folder / ENDED))
        state = found["state"]
        if state not in NAMES:
            return None
        return Ending(state, int(found["status"]), str(found["why"]), str(found["at"]))
    except (OSError, *UNREADABLE):
        return None


def write_reason(folder: Path, why: str) -> None:
    """Write why a learner of a launcher has failed; the launcher reads it when it ends the run."""
    write_whole(folder / FAILED, json.dumps({"why": why}).encode())


def take_reason(folder: Path) -> str:
    """Return the reason that a learner has written last, and delete it; "" if there is none or it cannot be read."""
    try:
        why = str(json.loads(read_plain(folder / FAILED))["why"])
    except (OSError, *UNREADABLE):
        why = ""
    (folder / FAILED).unlink(missing_ok=True)
    return why


def write_ending(folder: Path, ending: Ending) -> None:
    write_whole(folder / ENDED, json.dumps(asdict(ending), indent=1).encode())
