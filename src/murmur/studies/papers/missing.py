"""Missing runs of studies: listed, estimated in hours, and made in several processes.

A study whose next run depends on earlier rows (a bisection, a search for a rate) names its runs one by one. So the runs
that are known to be missing are made, then the studies are asked again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from murmur.execution.processes import run_in_workers
from murmur.studies.comparison.rows import Row, Rows
from murmur.studies.papers.cell import StudyCell, StudyMaterial
from murmur.studies.papers.run import MissingRun, Runner
from murmur.studies.papers.study import Study

SECONDS_PER_FRAME = 6e-5  # of one processor, while no row of so many learners tells it
DECODING_SECONDS = 40.0


class Unknown(dict[str, Any]):
    """Row of a run that has not been made: each look at it raises MissingRun.

    Args:
        cell: Its cell.
    """

    def __init__(self, cell: StudyCell) -> None:
        super().__init__()
        self.cell = cell

    def __getitem__(self, name: str) -> Any:
        raise MissingRun(self.cell.told)

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ARG002 - there is nothing
        raise MissingRun(self.cell.told)


def missing(studies: Sequence[Study], find: Runner) -> list[StudyCell]:
    """Return the cells that are known to be missing, each once.

    Args:
        studies: Studies, in the order of their runs.
        find: Runner without material.
    """
    found: dict[str, StudyCell] = {}

    def go(cell: StudyCell) -> Row:
        try:
            return find(cell)
        except MissingRun:
            before = found.get(cell.digest)
            found[cell.digest] = cell if before is None else replace(cell, decoded=cell.decoded or before.decoded)
            return Unknown(cell)

    for study in studies:
        try:
            study.runs(go)
        except MissingRun:
            continue
    return list(found.values())


def processor_hours(cells: Sequence[StudyCell], known: Mapping[str, Row]) -> float:
    """Return about the processor hours of runs, from rows of runs with the same number of learners."""
    paces: dict[int, list[float]] = {}
    for row in known.values():
        paces.setdefault(row["cell"]["learners"], []).append(row["cpu_seconds"] / row["cell"]["budget"])
    seconds = 0.0
    for cell in cells:
        pace = statistics.median(paces[cell.learners]) if cell.learners in paces else SECONDS_PER_FRAME
        seconds += pace * cell.budget + (DECODING_SECONDS if cell.decoded else 0.0)
    return seconds / 3600


@lru_cache(maxsize=1)  # the data of a process, read once
def material_of(corpus: Path, cache: Path) -> StudyMaterial:
    """Return the material in some folders."""
    return StudyMaterial(corpus, cache)


def row_of(cell: StudyCell, corpus: Path, cache: Path) -> Row:
    """Train a cell and return its row; runs in a worker."""
    return Runner(Rows(Path()), material_of(corpus, cache)).trained(cell)


def stack_of(seed: int, corpus: Path, cache: Path) -> Row:
    """Train the machines of a seed, if they are missing; return nothing."""
    Runner(Rows(Path()), material_of(corpus, cache)).stack(seed, material_of(corpus, cache))
    return {}


def make(cells: Sequence[StudyCell], material: StudyMaterial, jobs: int) -> Iterator[tuple[StudyCell, Row]]:
    """Yield cells with their new rows, as they finish.

    Args:
        cells: Cells to train.
        material: Prepared data.
        jobs: Number of processes.
    """
    where = {"corpus": material.corpus, "cache": material.cache}
    seeds = sorted({cell.seed for cell in cells if cell.stack})  # before the cells: several may need the same machines
    for _ in _run([partial(stack_of, seed, **where) for seed in seeds], jobs):
        pass
    for place, row in _run([partial(row_of, cell, **where) for cell in cells], jobs):
        yield cells[place], row


def _run(work: Sequence[Callable[[], Row]], jobs: int) -> Iterator[tuple[int, Row]]:
    if jobs > 1:
        yield from run_in_workers(work, jobs)
    else:
        yield from ((place, job()) for place, job in enumerate(work))


def bar(console: Console) -> Progress:
    """Return the progress bar of a study: runs that are done, and the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)
