"""`murmur compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from rich.console import Console

from murmur.commands.options import Kind, Settings, Source, Spread, grouped, numbers
from murmur.comparison.grid import Grid, split_strategies
from murmur.comparison.rows import Rows
from murmur.comparison.run_grid import checked, compare, estimate
from murmur.comparison.runs import CellPlace
from murmur.simulation.scenario import Scenario

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class GridOptions:
    """The cells, as texts.

    Attributes:
        strategies: List such as 'KAVG(8),ADPSGD(randomized_ring)'.
        learners: Numbers of processes on this host, such as 2,4; times are wall seconds.
        virtual: Numbers of virtual learners, such as 16,32; times are virtual seconds.
        seeds: Seeds of the repetitions, such as 0,1,2.
    """

    panel: ClassVar[str] = "Grid"
    strategies: str
    learners: str = ""
    virtual: str = ""
    seeds: str = "0"


@dataclass(frozen=True)
class ClusterOptions:
    """The virtual cluster; the fields are those of a scenario.

    Attributes:
        step_seconds: Seconds per gradient of a virtual learner; measured on this machine by default.
    """

    panel: ClassVar[str] = "Virtual cluster"
    kind: Kind = None
    step_seconds: float | None = None


@dataclass(frozen=True)
class Execution:
    """The way to run the grid.

    Attributes:
        out: Folder for rows, runs and tables.
        threads: Compute threads per process; an equal share of the cores by default.
        retry: Repeat cells that failed before.
    """

    panel: ClassVar[str] = "Execution"
    out: Path = Path("runs/compared")
    threads: Annotated[int | None, typer.Option(min=1)] = None
    retry: bool = False


Dry = Annotated[bool, typer.Option("--dry-run", help="Show the grid with an estimate of its time; train nothing.")]
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
@grouped
def compare_command(
    source: Source,
    *,
    cells: GridOptions,
    settings: Settings = (),
    cluster: ClusterOptions,
    spread: Spread,
    how: Execution,
    dry: Dry = False,
) -> None:
    grid = Grid(
        source,
        settings,
        split_strategies(cells.strategies),
        numbers(cells.learners, "--learners"),
        numbers(cells.virtual, "--virtual"),
        numbers(cells.seeds, "--seeds"),
        Scenario(**vars(cluster), **vars(spread)),
    )
    grid, measured = checked(grid, how.out, dry)
    if dry:
        Console().print(estimate(grid, Rows(CellPlace(how.out).cells).read(), measured))
    else:
        raise typer.Exit(compare(grid, measured, **vars(how)))
