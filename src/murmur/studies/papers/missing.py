"""Missing runs of studies, made in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from murmur.execution.processes import run_in_workers
from murmur.studies.comparison.rows import Row
from murmur.studies.papers.cell import StudyCell, StudyMaterial
from murmur.studies.papers.run import stack, trained

Folders = tuple[tuple[str, Path], ...]


@lru_cache(maxsize=1)  # the data of a process, read once
def material_of(corpora: Folders, cache: Path) -> StudyMaterial:
    """Return the material in some folders."""
    return StudyMaterial(dict(corpora), cache)


def row_of(cell: StudyCell, corpora: Folders, cache: Path) -> Row:
    """Train a cell and return its row; runs in a worker."""
    return trained(cell, material_of(corpora, cache))


def stack_of(seed: int, corpora: Folders, cache: Path) -> Row:
    """Train the machines of a seed, if they are missing; return nothing."""
    stack(seed, material_of(corpora, cache))
    return {}


def make(cells: Sequence[StudyCell], material: StudyMaterial, jobs: int) -> Iterator[tuple[StudyCell, Row]]:
    """Yield cells with their new rows, as they finish.

    Args:
        cells: Cells to train.
        material: Prepared data.
        jobs: Number of processes.
    """
    where = {"corpora": tuple(sorted(material.corpora.items())), "cache": material.cache}
    seeds = sorted({cell.seed for cell in cells if cell.stack})  # before the cells: several may need the same machines
    for _ in _run([partial(stack_of, seed, **where) for seed in seeds], jobs):  # type: ignore[arg-type]
        pass
    for place, row in _run([partial(row_of, cell, **where) for cell in cells], jobs):  # type: ignore[arg-type]
        yield cells[place], row


def _run(work: Sequence[Callable[[], Row]], jobs: int) -> Iterator[tuple[int, Row]]:
    if jobs > 1:
        yield from run_in_workers(work, jobs)
    else:
        yield from ((place, job()) for place, job in enumerate(work))


def bar(console: Console) -> Progress:
    """Return the progress bar of the studies: runs that are done, and the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)
