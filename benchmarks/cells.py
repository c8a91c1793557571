"""One run of a study as a cell, and the loop that makes the rows of missing cells."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from murmur.comparison.rows import Row, Rows

S = TypeVar("S")


@dataclass(frozen=True)
class Cell(Generic[S]):
    """One run: its settings, the digest of all that determines its row, and the row's fields that describe it."""

    settings: S
    digest: str
    about: Row = field(hash=False, compare=False)


def rows_of(
    cells: Sequence[Cell[S]], path: Path, make: Callable[[S], dict[str, Any]], jobs: int = 1, known_only: bool = False
) -> list[Row]:
    """Rows of the cells, in their order; those that `path` lacks are made, and stored as they finish.

    Args:
        cells: cells.
        path: file of the rows.
        make: function that runs the settings of a cell, in a process of its own, and returns its figures.
        jobs: number of processes.
        known_only: leave out cells without a row.
    """
    kept = Rows(path)
    known = kept.read()
    missing = [] if known_only else [cell for cell in cells if cell.digest not in known]
    began = time.monotonic()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(make, cell.settings): cell for cell in missing}
        for number, finished in enumerate(as_completed(running), 1):
            cell = running[finished]
            known[cell.digest] = row = {**cell.about, "digest": cell.digest, **finished.result()}
            kept.append(row)
            left = (time.monotonic() - began) / number * (len(missing) - number) / 60
            print(f"{cell.settings}: {number} of {len(missing)}, {left:.0f} min left", flush=True)
    return [known[cell.digest] for cell in cells if cell.digest in known]
