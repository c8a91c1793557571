"""Names of runs in a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from murmur.report.read import ReportError


def names_of(folders: Sequence[Path]) -> list[str]:
    """A name for each folder: its own, with as many parents as needed to make it unique.

    Raises:
        ReportError: a folder was given twice.
    """
    absolute = [Path(folder).absolute() for folder in folders]
    for depth in range(1, max((len(path.parts) for path in absolute), default=1) + 1):
        names = ["/".join(path.parts[-depth:]) for path in absolute]
        if len(set(names)) == len(names):
            return names
    raise ReportError(f"the same run folder was given twice: {', '.join(map(str, folders))}")
