"""Before a task prepares its data: checks of its paths and names, and a forecast of time and disk space."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from murmur.core.path_checks import LEAST_BYTES, folder_to_write
from murmur.core.printable import say
from murmur.engine.record import duration
from murmur.engine.task import Checkable, Preparable, Unmade
from murmur.run.timed import slowdown

MB = 1e6


def to_prepare(task: object) -> list[Unmade]:
    """Return the data that a task has still to prepare, as far as it can tell, and check that the disk has room."""
    found = list(task.unprepared()) if isinstance(task, Preparable) else []
    needed: dict[Path, float] = {}
    for each in found:
        needed[each.folder] = needed.get(each.folder, LEAST_BYTES) + each.size_bytes
    for folder, size in needed.items():
        folder_to_write(folder, "task.cache", size)
    return found


def tell_preparation(task: object) -> Sequence[Unmade]:
    """Print the unprepared data and the time it takes to standard error, if there is any; return it."""
    missing = to_prepare(task)
    for line in preparation_lines(missing) if missing else ():
        say(line, err=True)
    return missing


def preparation_lines(missing: Sequence[Unmade]) -> list[str]:
    if not missing:
        return ["prepared: all data for training exists"]
    lines = [f"not prepared: {each.what}: about {duration(max(1.0, each.seconds))}" for each in missing]
    size = sum(each.size_bytes for each in missing) / MB
    where = ", ".join(dict.fromkeys(str(each.folder) for each in missing))
    whole = duration(max(1.0, sum(each.seconds for each in missing)))
    factor = slowdown()
    busy = f" (this one is busy: {factor:.1f} times as long)" if factor > 1 else ""
    return [*lines, f"to prepare: about {whole} on an idle machine{busy}, {size:.0f} MB in {where}"]


def task_to_do(task: object) -> None:
    if isinstance(task, Checkable):
        task.check()
