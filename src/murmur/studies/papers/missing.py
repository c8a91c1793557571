"""Missing runs of studies, made in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from murmur.execution.processes import bar_of, run_following
from murmur.studies.comparison.rows import Row
from murmur.studies.papers.cell import StudyCell, StudyMaterial
from murmur.studies.papers.run import stack, stack_file, trained

Folders = tuple[tuple[str, Path], ...]


@lru_cache(maxsize=1)  # the data of a process, read once
def material_of(corpora: Folders, cache: Path, device: str) -> StudyMaterial:
    """Return the material in some folders."""
    return StudyMaterial(dict(corpora), cache, device)


def row_of(cell: StudyCell, corpora: Folders, cache: Path, device: str) -> Row:
    """Train a cell and return its row; runs in a worker."""
    return trained(cell, material_of(corpora, cache, device))


def stack_of(seed: int, corpora: Folders, cache: Path, device: str) -> Row:
    """Train the machines of a seed, if they are missing; return nothing."""
    stack(seed, material_of(corpora, cache, device))
    return {}


class Queue:
    """Names the next run that is missing, and that no process is making.

    Args:
        missing: Function that returns the cells that are missing and can run now, in their order.
        material: Prepared data.
        begins: Function that is called with each cell before it runs.
    """

    def __init__(
        self,
        missing: Callable[[], Sequence[StudyCell]],
        material: StudyMaterial,
        begins: Callable[[StudyCell], None],
    ) -> None:
        self._missing, self._material, self._begins = missing, material, begins
        self._begun: set[str | int] = set()

    def following(self) -> StudyCell | int | None:
        """Return a cell, or the seed of machines that a cell needs; None: nothing can begin now."""
        for cell in self._missing():
            if cell.digest in self._begun:
                continue
            if cell.stack and not stack_file(cell.seed, self._material).exists():
                if cell.seed in self._begun:  # another process trains them
                    continue
                self._begun.add(cell.seed)
                return cell.seed
            self._begun.add(cell.digest)
            self._begins(cell)
            return cell
        return None

    def ended(self, cell: StudyCell) -> None:
        """Note that a cell has a row; it may be asked for again, to be decoded."""
        self._begun.discard(cell.digest)


def make(
    missing: Callable[[], Sequence[StudyCell]],
    material: StudyMaterial,
    jobs: int,
    begins: Callable[[StudyCell], None] = lambda _: None,
) -> Iterator[tuple[StudyCell, Row]]:
    """Yield cells with their new rows, as they finish; the caller stores each row before it asks for the next.

    Args:
        missing: Function that returns the cells that are missing and can run now, in their order.
        material: Prepared data.
        jobs: Number of processes.
        begins: Function that is called with each cell before it runs.
    """
    queue = Queue(missing, material, begins)
    where = {"corpora": tuple(sorted(material.corpora.items())), "cache": material.cache, "device": material.device}

    def job_of(name: StudyCell | int) -> Callable[[], Row]:
        if isinstance(name, StudyCell):
            return partial(row_of, name, **where)  # type: ignore[arg-type]
        return partial(stack_of, name, **where)  # type: ignore[arg-type]

    run: Callable[..., Iterator[tuple[StudyCell | int, Row]]] = run_following if jobs > 1 else _made_here
    made = run(queue.following, job_of, jobs)
    for name, row in made:
        if isinstance(name, StudyCell):
            yield name, row
            queue.ended(name)


def _made_here(
    following: Callable[[], StudyCell | int | None], job_of: Callable[[StudyCell | int], Callable[[], Row]], _: int
) -> Iterator[tuple[StudyCell | int, Row]]:
    while (name := following()) is not None:
        yield name, job_of(name)()


def bar(console: Console) -> Progress:
    """Return the progress bar of the studies: runs that are done, and the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return bar_of(*columns, console=console)
