"""`murmur compare`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from murmur.commands.cluster_options import KINDS, Jitter, Stragglers
from murmur.commands.options import Settings, Source
from murmur.core.errors import SettingError
from murmur.core.path_checks import folder_to_write
from murmur.core.plain_files import UNREADABLE, read_plain
from murmur.core.stop_signals import Stopped
from murmur.engine.checkpoints.checkpoint import write_whole
from murmur.engine.experiment import describe
from murmur.engine.record import duration
from murmur.engine.seeds import seed_of, seed_torch
from murmur.execution.cores import cores_here
from murmur.execution.processes import bar_of
from murmur.report.terminal_table import TerminalTable
from murmur.run.dry_run import first_steps
from murmur.run.task_checks import task_to_do
from murmur.run.timed import timed
from murmur.simulation.scenario import KIND, Scenario
from murmur.studies.comparison import output
from murmur.studies.comparison.grid import Cell, Grid, numbers, split_strategies
from murmur.studies.comparison.rows import Row, Rows
from murmur.studies.comparison.runs import CellPlace, locked, run
from murmur.studies.comparison.table import table

app = typer.Typer(add_completion=False)
GRID, CLUSTER, HOW = "Grid", "Virtual cluster", "Execution"

Chosen = Annotated[
    str, typer.Option("--strategies", help="List such as 'KAVG(8),ADPSGD(randomized_ring)'.", rich_help_panel=GRID)
]
Learners = Annotated[
    str,
    typer.Option(help="Numbers of processes on this host, such as 2,4; times are wall seconds.", rich_help_panel=GRID),
]
Virtual = Annotated[
    str,
    typer.Option(help="Numbers of virtual learners, such as 16,32; times are virtual seconds.", rich_help_panel=GRID),
]
Seeds = Annotated[str, typer.Option(help="Seeds of the repetitions, such as 0,1,2.", rich_help_panel=GRID)]
Kind = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help=f"{KINDS} By default the experiment's own cluster, or {KIND}.",
        rich_help_panel=CLUSTER,
    ),
]
Step = Annotated[
    float | None,
    typer.Option(
        "--step-seconds",
        help="Seconds per gradient of a virtual learner; measured on this machine by default.",
        rich_help_panel=CLUSTER,
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for rows, runs and tables.", rich_help_panel=HOW)]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Compute threads per process; an equal share of the cores by default.",
        rich_help_panel=HOW,
    ),
]
Dry = Annotated[bool, typer.Option("--dry-run", help="Show the grid with an estimate of its time; train nothing.")]
Retry = Annotated[bool, typer.Option("--retry", help="Repeat cells that failed before.", rich_help_panel=HOW)]

HELP = """Compare strategies at several numbers of learners: a grid of runs and one table.

Example: murmur compare toy --strategies 'KAVG(8),ADPSGD()' --learners 1,2 --virtual 16 --seeds 0,1 --out runs/grid

--learners trains with real processes; --virtual trains with real gradients on a virtual cluster with a virtual clock.
A run of one learner, never a straggler, is added to each: speed-up, efficiency and the difference of word error rates
are relative to it. The options of the virtual cluster need --virtual.

After an interruption the same command continues; with more strategies, numbers or seeds it adds to the table. A cell
that fails is recorded with its error, the other cells go on, and the exit status is 1. docs/compare.md describes the
files. `murmur report runs/grid` makes a page of the comparison.
"""


@app.command("compare", help=HELP)
def compare_command(
    source: Source,
    strategies: Chosen,
    learners: Learners = "",
    virtual: Virtual = "",
    seeds: Seeds = "0",
    settings: Settings = None,
    kind: Kind = None,
    step: Step = None,
    jitter: Jitter = 0.0,
    straggler: Stragglers = None,
    out: Out = Path("runs/compared"),
    threads: Threads = None,
    retry: Retry = False,
    dry: Dry = False,
) -> None:
    grid = Grid(
        source,
        tuple(settings or ()),
        split_strategies(strategies),
        numbers(learners, "--learners"),
        numbers(virtual, "--virtual"),
        numbers(seeds, "--seeds"),
        Scenario(kind=kind, step_seconds=step, jitter=jitter, stragglers=tuple(straggler or ())),
    )
    folder_to_write(out, "--out")
    task_to_do(grid.base.task)
    before = told(out, grid)
    grid, measured = timed_grid(grid, before, dry)
    if dry:
        Console().print(estimate(grid, Rows(CellPlace(out).cells).read(), measured))
        return
    with locked(out) as place:
        write_whole(out / "compare.json", json.dumps(asked(grid, measured), indent=1).encode())
        status = compare(grid, place, threads, retry)
    raise typer.Exit(status)


def told(out: Path, grid: Grid) -> Mapping[str, Any]:
    """Return compare.json of the comparison in `out`; empty if there is none.

    Raises:
        SettingError: the comparison is of another experiment.
    """
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
        with timed("a step of one learner, on this machine"):
            seed_torch(seed_of(experiment.seed, "model"), "cpu")
            measured = first_steps(experiment, experiment.task.model(), "cpu").step_seconds
    if unknown:
        grid = replace(grid, scenario=replace(grid.scenario, step_seconds=measured))
    return grid, measured


def asked(grid: Grid, measured: float | None) -> dict[str, Any]:
    """Contents of compare.json."""
    return {
        "source": grid.source,
        "settings": list(grid.settings),
        "strategies": list(grid.strategies),
        "learners": list(grid.learners),
        "virtual": list(grid.virtual),
        "seeds": list(grid.seeds),
        "scenario": describe(grid.scenario),
        "measured_step_seconds": measured,
        "command": ["murmur", *sys.argv[1:]],
    }


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


def compare(grid: Grid, place: CellPlace, threads: int | None, retry: bool) -> int:
    """Run the missing cells; write and show the table.

    Returns:
        The exit status: 1 if a cell failed.
    """
    rows, console = Rows(place.cells), Console(stderr=True)
    known = rows.read()
    missing = [cell for cell in grid.cells() if _to_do(known.get(grid.digest(cell)), retry)]
    grid.base.task.prepare()
    try:
        run_all(grid, missing, place, threads, console)
    except Stopped:
        show(grid, place)
        raise
    return show(grid, place)


def _to_do(row: Row | None, retry: bool) -> bool:
    return row is None or (retry and row["status"] == "failed")


def run_all(grid: Grid, cells: Sequence[Cell], place: CellPlace, threads: int | None, console: Console) -> None:
    """Run one cell after the other; write each row as soon as its cell has ended."""
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
    """Show the table on the terminal and write it to files.

    Returns:
        1 if a cell failed, else 0.
    """
    rows = Rows(place.cells).read()
    lines = table(grid, rows, place)
    output.write(lines, place.out)
    console = Console()
    for each in output.console_tables(lines, f"{grid.source}, seeds {', '.join(map(str, grid.seeds))}"):
        console.print(each)
    for note in output.notes(lines):
        console.print(note, highlight=False, markup=False, soft_wrap=True)
    console.print(f"{place.out / 'table.md'}, .csv, .json", highlight=False, soft_wrap=True)
    found = [rows.get(grid.digest(cell)) for cell in grid.cells()]
    return 1 if any(row is not None and row["status"] == "failed" for row in found) else 0
