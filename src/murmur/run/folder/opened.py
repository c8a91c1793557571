"""Opens a run folder: chooses, checks and locks it before any file is written."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from murmur.core.errors import SettingError
from murmur.core.stop_signals import STOPPED_STATUS, Stopped
from murmur.run.folder.contents import refuse_links, refuse_work, remove_run, remove_unused
from murmur.run.folder.lock import LOCK, FolderLock
from murmur.run.folder.state import ENDED, FAILED, PEER_LOST_STATUS, Ending, take_reason, write_ending

log = logging.getLogger(__name__)
LATEST = Path("runs/latest")  # a link to the newest run that was started without --out
WAYS = (
    "Continue it with --resume, keep it and give another --out, or replace it with --force (which removes the files of"
    " that run and nothing else)"
)


@dataclass
class OpenedRun:
    """Folder of one launch, open for writing.

    Attributes:
        out: The folder itself, never the link.
        lock: Lock on the folder, held until the launch ends.
        resume: Continue the run in the folder.
        latest: Link to set to the folder once the run has begun; None changes no link.
        begun: The run has begun.
    """

    out: Path
    lock: FolderLock
    resume: bool
    latest: Path | None = None
    begun: bool = field(default=False, init=False)

    def begin(self) -> None:
        """Remove the files of the previous run, unless it is continued, and set the link; all checks have passed."""
        if self.resume:
            for name in (ENDED, FAILED):
                (self.out / name).unlink(missing_ok=True)
        else:
            remove_run(self.out)
        self.begun = True
        if self.latest is not None:
            point(self.latest, self.out)

    def end(self, status: int, why: str = "") -> int:
        """Write the final record, if the run has begun; return the status.

        Without a reason, a failure has that of the learner of this launch which failed last.
        """
        if self.begun:
            told = take_reason(self.out)
            failed = status not in (0, STOPPED_STATUS, PEER_LOST_STATUS)
            write_ending(self.out, Ending.of(status, why or (told if failed else "")))
        return status


@contextmanager
def opened(out: Path, name: str, resume: bool, force: bool, ways: str = WAYS) -> Iterator[OpenedRun]:
    """Check and lock the folder of a run. `LATEST` is a new folder, or with `resume` the newest one.

    Args:
        out: Folder of the run.
        name: Name of the experiment, for the name of a new folder.
        resume: Continue a run in the folder.
        force: Remove a run in the folder when the new one begins.
        ways: Alternatives for the message about a folder that holds a run.

    Raises:
        SettingError: the folder holds a run, or a link in the place of a file of a run, or another process works in it.
    """
    if resume and force:
        raise SettingError("--resume continues a run and --force removes it: give one of them")
    fresh = out == LATEST and not (resume and (out.exists() or out.is_symlink()))
    folder, made = (_new(out, name), True) if fresh else (_target(out), not out.exists())
    if not resume and not force:
        refuse_work(folder, ways)
    refuse_links(folder)
    lock = FolderLock.take(folder / LOCK)
    run = OpenedRun(folder, lock, resume, LATEST if out == LATEST else None)
    try:
        if not resume and not force:
            refuse_work(folder, ways)  # another run may have ended there before the lock was taken
        yield run
    except Stopped as stopped:
        run.end(STOPPED_STATUS, f"stopped by {stopped.name}")
        raise
    except BaseException as error:
        run.end(1, f"{type(error).__name__}: {error}".rstrip(": "))
        raise
    finally:
        if not run.begun:
            lock.restore()
        if made and not run.begun:
            remove_unused(folder, LOCK)
        lock.close()


def chosen_folder(out: Path, name: str, resume: bool) -> Path:
    """Return the folder for `out`; `LATEST` makes a new folder and sets the link to it."""
    if out != LATEST or (resume and (out.exists() or out.is_symlink())):
        return _target(out)
    folder = _new(out, name)
    point(out, folder)
    return folder


def point(link: Path, folder: Path) -> None:
    """Set a link to a folder; an existing file or folder in its place stays, with a warning."""
    if link.exists() and not link.is_symlink():
        log.warning("%s is a folder of an earlier version, not a link: it stays; this run is in %s", link, folder)
        return
    target = Path(os.path.relpath(folder, link.parent))
    if link.is_symlink() and link.readlink() == target:
        return
    new = link.with_name(f".{link.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    new.symlink_to(target, target_is_directory=True)
    new.replace(link)


def _target(out: Path) -> Path:
    """Resolve a link, so that a run stays in its folder when the link changes."""
    if not out.is_symlink():
        return out
    target = out.parent / out.readlink()
    if not target.is_dir():
        raise SettingError(f"{out} is a link to {target}, which is not a folder: name the run's folder with --out")
    return target


def _new(latest: Path, name: str) -> Path:
    stem = f"{datetime.now().astimezone():%Y-%m-%d-%H%M%S}-{name}"
    number = 1
    while True:
        folder = latest.with_name(stem if number == 1 else f"{stem}-{number}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder
