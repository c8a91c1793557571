"""Files of JSON lines that may be damaged, or be written while they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from murmur.core.counted import counted
from murmur.core.plain_files import UNREADABLE
from murmur.core.whole_files import FinishedLines


def read_lines(path: Path, take: Callable[[Any], None], problems: list[str]) -> None:
    """Pass the content of each finished line to `take`. Lines that it cannot take are left out and noted.

    An unfinished last line is left out and noted too: the run that writes it may be under way or have been killed.
    """
    lines, damaged = FinishedLines(path), list[int]()
    for number, line in enumerate(lines, start=1):
        try:
            take(json.loads(line))
        except UNREADABLE:
            damaged.append(number)
    if damaged:
        problems.append(f"{path}: {counted(len(damaged), 'damaged line')} left out, the first is line {damaged[0]}")
    if lines.rest:
        problems.append(
            f"{path}: the last line is unfinished and left out (it is being written, or its run was killed)"
        )
