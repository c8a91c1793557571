"""The run of a grid: what its folder says of an earlier one, the time of its cells, the missing cells, the table."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from murmur.comparison.grid import Cell, Grid
from murmur.comparison.rows import Row, Rows
from murmur.comparison.runs import CellPlace, locked, run
from murmur.comparison.table import console_tables, notes, table, write
from murmur.core.errors import SettingError
from murmur.core.path_checks import folder_to_write
from murmur.core.plain_files import UNREADABLE, read_plain
from murmur.core.stop_signals import Stopped
from murmur.core.whole_files import write_whole
from murmur.engine.experiment import describe
from murmur.engine.record import duration
from murmur.execution.processes import bar_of
from murmur.execution.workers import cores_here
from murmur.report.terminal_table import TerminalTable
from murmur.run.dry_run import measured_steps
from murmur.run.preparation import task_to_do


def checked(grid: Grid, out: Path, dry: bool) -> tuple[Grid, float | None]:
    """Return the grid with its seconds per gradient, and the measured value, after a check of folder and task."""
    folder_to_write(out, "--out")
    task_to_do(grid.base.task)
    return timed_grid(grid, told(out, grid), dry)


def compare(grid: Grid, measured: float | None, out: Path, threads: int | None, retry: bool) -> int:
    """Run the missing cells of a checked grid, write and show its table; return 1 if a cell failed, else 0."""
    with locked(out) as place:
        write_whole(out / "compare.json", json.dumps(asked(grid, measured), indent=1).encode())
        known = Rows(place.cells).read()
        missing = [cell for cell in grid.cells() if _to_do(known.get(grid.digest(cell)), retry)]
        grid.base.task.prepare()
        try:
            run_all(grid, missing, place, threads)
        except Stopped:
            show(grid, place)
            raise
        return show(grid, place)


def told(out: Path, grid: Grid) -> Mapping[str, Any]:
    """Return compare.json of the comparison in `out`; empty if there is none."""
    path = out / "compare.json"
    if not path.is_file():
        return {}
    try:
        found: dict[str, Any] = json.loads(read_plain(path))
        same = (found["source"], found["settings"]) == (grid.source, list(grid.settings))
        if not isinstance(found.get("measured_step_seconds", 0.0), float | None):
            raise TypeError(f"measured_step_seconds is {found['measured_step_seconds']!r}, not a number")
    except UNREADABLE as error:
        raise SettingError(f"{path} is damaged ({error}): delete it, finished runs are kept") from error
    if not same:
        raise SettingError(
            f"{out} holds a comparison of {found['source']} with --set {found['settings']}: give another --out"
        )
    return found


def timed_grid(grid: Grid, before: Mapping[str, Any], dry: bool) -> tuple[Grid, float | None]:
    """Return the grid with its seconds per gradient, measured once if nothing states them, and the measured value."""
    experiment, measured = grid.base, before.get("measured_step_seconds")
    unknown = bool(grid.virtual) and grid.scenario.unknown_step(experiment)
    assumed = replace(grid, scenario=replace(grid.scenario, step_seconds=1.0)) if unknown else grid
    for cell in assumed.cells():
        assumed.digest(cell)  # reports an invalid strategy or cluster before anything is prepared
    if measured is None and (unknown or dry):
        experiment.task.prepare()
        measured = measured_steps(experiment).step_seconds
    if unknown:
        grid = replace(grid, scenario=replace(grid.scenario, step_seconds=measured))
    return grid, measured


def asked(grid: Grid, measured: float | None) -> dict[str, Any]:
    cells = {f.name: describe(getattr(grid, f.name)) for f in fields(grid) if f.init}
    return {**cells, "measured_step_seconds": measured, "command": ["murmur", *sys.argv[1:]]}


def estimate(grid: Grid, rows: Mapping[str, Row], step_seconds: float | None) -> TerminalTable:
    """Table of the cells with the time that the gradients of each take on this machine."""
    whole, cores = 0.0, cores_here()
    shown = TerminalTable(("cell", "kind", "learners", "seed", "minibatches", "about", ""), keys=4)
    for cell in grid.cells():
        total = grid.base.scaled(cell.learners).total
        at_once = min(cell.learners, cores) if cell.kind == "processes" else 1
        seconds = math.nan if step_seconds is None else grid.base.total * step_seconds / at_once
        row = rows.get(grid.digest(cell))
        state = "to do" if row is None else row["status"]
        whole += seconds if row is None else 0.0
        shown.add_row(
            cell.strategy, cell.kind, str(cell.learners), str(cell.seed), str(total), duration(seconds), state
        )
    shown.caption = f"{duration(whole)} to do: gradients only, without start of processes, evaluation or test"
    return shown


def _to_do(row: Row | None, retry: bool) -> bool:
    return row is None or (retry and row["status"] == "failed")


def run_all(grid: Grid, cells: Sequence[Cell], place: CellPlace, threads: int | None) -> None:
    """Run one cell after the other; write each row as soon as its cell has ended."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with bar_of(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=len(cells))
        for cell in cells:
            bar.update(task, description=cell.name)
            row = run(grid, cell, place, threads)
            Rows(place.cells).append(row)
            bar.advance(task)
            seconds = row["real_seconds"]
            end = f"failed: {row['error']}" if row["error"] else "done" if seconds is None else f"{seconds:.1f} s"
            console.print(f"{cell.name}: {end}", highlight=False, markup=False, soft_wrap=True)


def show(grid: Grid, place: CellPlace) -> int:
    rows = Rows(place.cells).read()
    lines = table(grid, rows, place)
    write(lines, place.out)
    console = Console()
    for each in console_tables(lines, f"{grid.source}, seeds {', '.join(map(str, grid.seeds))}"):
        console.print(each)
    for note in notes(lines):
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    console.print(f"{place.out / 'table.md'}, .csv, .json", highlight=False, soft_wrap=True)
    found = [rows.get(grid.digest(cell)) for cell in grid.cells()]
    return 1 if any(row is not None and row["status"] == "failed" for row in found) else 0
