"""A run's folder: its files, the work among them that must not be lost, and its opening for a launch."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.core.plain_files import UNREADABLE, read_plain, refuse_link
from murmur.core.stop_signals import STOPPED_STATUS, Stopped
from murmur.core.whole_files import UNFINISHED
from murmur.run.folder.lock import (
    ENDED,
    FAILED,
    LOCK,
    PEER_LOST_STATUS,
    Ending,
    FolderLock,
    state_of,
    take_reason,
    write_ending,
)

RUN, REQUEST, LAUNCH = "run.json", "request.json", "launch.json"
RECOGNISER = "recogniser"  # everything besides the weights that recognition needs
RESCORING = "rescoring.json"  # weights of language models that rescore this run's results
DESCRIPTION = "description"  # plain files that a model of another kind needs beside its weights
MODELS = ("model", "best", "averaged")
FILES = (
    *(RUN, REQUEST, LAUNCH, ENDED, FAILED),
    *("records.jsonl", "trace.json", "score.json", "recognised.jsonl", "phases.json"),
    *("simulated.json", "simulated.png", "report.html", RESCORING),
    *(f"{name}.{kind}" for name in MODELS for kind in ("json", "safetensors")),
)
REPORTS = "errors"  # as in murmur.engine.task, which would load PyTorch
CHECKPOINT = f"checkpoints/{'[0-9]' * 10}"  # a copy with another name is a user's file
PATTERNS = (
    "trace-until-*.json",
    f"{CHECKPOINT}/learner-*.*",
    "checkpoints/marks/[0-9]*.*",
    "checkpoints/began.json",
    "decoded/*",
    *(f"decoded/{REPORTS}/*", f"{REPORTS}/*.txt"),
    f"{RECOGNISER}/graphs/graph-*/*",
    f"{RECOGNISER}/*",
    f"{DESCRIPTION}/*",
)
FOLDERS = (
    *(CHECKPOINT, "checkpoints/marks", "checkpoints", f"decoded/{REPORTS}", "decoded", REPORTS),
    *(f"{RECOGNISER}/graphs/graph-*", f"{RECOGNISER}/graphs", RECOGNISER),
    DESCRIPTION,
)
WORK = ("score.json", "simulated.json", *(f"{name}.safetensors" for name in MODELS))
log = logging.getLogger(__name__)
LATEST = Path("runs/latest")  # a link to the newest run that was started without --out
WAYS = (
    "Continue it with --resume, keep it and give another --out, or replace it with --force (which removes the files of"
    " that run and nothing else)"
)


def holds_work(folder: Path) -> bool:
    """True if the folder holds results that took time: a record, a checkpoint, a model or a score."""
    records = folder / "records.jsonl"
    if records.is_file() and records.stat().st_size > 0:
        return True
    if any((folder / name).is_file() for name in WORK):
        return True
    return any(True for _ in folder.glob("checkpoints/[0-9]*/learner-*"))


def refuse_work(folder: Path, ways: str) -> None:
    """Refuse a folder that holds a run, with a description of it; `ways` names the alternatives."""
    if holds_work(folder):
        raise SettingError(f"{folder} holds a run already: {told(folder)}. {ways}")


def told(folder: Path) -> str:
    """Describe a run in one line: source, strategy, learners, state and date."""
    facts = read_facts(folder)
    experiment = facts.get("experiment")
    strategy = written(experiment["strategy"]) if isinstance(experiment, Mapping) and "strategy" in experiment else None
    learners = facts.get("learners")
    count = counted(learners, "learner") if isinstance(learners, int) else None
    started = f"started {facts['started']}" if "started" in facts else f"without a readable {RUN}"
    source = facts.get("source")
    parts = [source, strategy, count, str(state_of(folder)), started]
    return ", ".join(str(part) for part in parts if part)


def read_facts(folder: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(read_plain(folder / RUN))
    except (OSError, *UNREADABLE):
        return {}
    return found if isinstance(found, dict) else {}


def written(value: Any) -> str:
    """Format a described value as Python code, such as KAVG(K=4)."""
    if not isinstance(value, Mapping) or "type" not in value:
        return str(value).rpartition(".")[2] if str(value).startswith("murmur.") else str(value)
    fields = ", ".join(f"{name}={written(x)}" for name, x in value.items() if name != "type")
    return f"{str(value['type']).rpartition('.')[2]}({fields})"


def refuse_links(folder: Path) -> None:
    """Check that no file or folder of a run is a symbolic link, through which a run would write elsewhere.

    The run's folder itself may be one, and so may other files in it.
    """
    patterns = (LOCK, *FILES, *PATTERNS, *FOLDERS)
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            inside = path.relative_to(folder)
            if path.is_symlink() and any(_is_of(inside, pattern) for pattern in patterns):
                refuse_link(path, " (in a run's folder, only the folder itself may be a link)")


def _is_of(path: Path, pattern: str) -> bool:
    return len(path.parts) == pattern.count("/") + 1 and path.match(pattern)


def remove_run(folder: Path) -> None:
    """Delete the files that a run wrote; keep other files and the lock."""
    for path in _written(folder):
        path.unlink(missing_ok=True)
    for pattern in FOLDERS:
        for path in folder.glob(pattern):
            if path.is_dir() and not _is_linked(path, folder) and not any(path.iterdir()):
                path.rmdir()


def remove_unused(folder: Path, lock: str) -> None:
    if {path.name for path in folder.iterdir()} <= {lock}:
        shutil.rmtree(folder)


def _written(folder: Path) -> Iterator[Path]:
    yield from folder.glob(f"{UNFINISHED}*")  # left by a killed process
    for name in FILES:
        yield folder / name
    for pattern in PATTERNS:
        yield from (path for path in folder.glob(pattern) if path.is_file() and not _is_linked(path.parent, folder))


def _is_linked(path: Path, folder: Path) -> bool:
    return any(place.is_symlink() for place in (path, *path.parents) if place != folder and folder in place.parents)


@dataclass
class OpenedRun:
    """Folder of one launch, open for writing.

    `out` is the folder itself, never the link; `latest` is the link to set to it once the run has begun.
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

    `name` is that of the experiment, for a new folder; `ways` the alternatives to a folder that holds a run.

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
        log.warning("%s is a folder, not a link: it stays; this run is in %s", link, folder)
        return
    target = Path(os.path.relpath(folder, link.parent))
    if link.is_symlink() and link.readlink() == target:
        return
    new = link.with_name(f".{link.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    new.symlink_to(target, target_is_directory=True)
    new.replace(link)


def _target(out: Path) -> Path:
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
