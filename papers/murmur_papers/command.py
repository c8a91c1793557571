"""`murmur papers`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from murmur.accelerator.device import is_present
from murmur.comparison.rows import Row, Rows
from murmur.core.counted import are, counted
from murmur.core.errors import SettingError, nearest
from murmur.core.path_checks import file_to_write, folder_to_write
from murmur.execution.processes import bar_of
from murmur.run.folder.lock import LOCK, locked
from murmur.run.preparation import task_to_do
from murmur_papers.studies.cell import StudyCell, StudyMaterial
from murmur_papers.studies.networks import SETUPS, Name
from murmur_papers.studies.page import HEAD, PAGE, STUDIES, claims, write
from murmur_papers.studies.plan import foreseen, missing, outcomes, whole
from murmur_papers.studies.run import (
    Finder,
    build_of,
    diverged,
    known_rows,
    loss,
    machine,
    make,
    of_builds,
    on_newest_builds,
)
from murmur_papers.studies.study import Study
from murmur_papers.studies.verdicts import elsewhere

app = typer.Typer(add_completion=False)
Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME...]", help=f"Any of {', '.join(STUDIES)}; all by default.")
]
An4 = Annotated[
    Path | None,
    typer.Option("--an4", "--corpus", help="Folder of AN4, for the LSTM with CTC; without it these runs are left out."),
]
LibriSpeech = Annotated[
    Path | None, typer.Option(help="Folder of the part of LibriSpeech, for the other networks; likewise.")
]
Finished = Annotated[Path, typer.Option("--rows", help="File of the rows; runs that it holds are not repeated.")]
Out = Annotated[Path, typer.Option(help="Folder for papers.md and its picture.")]
Jobs = Annotated[int, typer.Option(min=1, help="Number of runs at the same time, each in a process of its own.")]
Device = Annotated[
    str,
    typer.Option(
        help="cpu, or a GPU such as cuda: it computes the gradients of all learners of a run in one call, for networks"
        " and optimizers that allow it."
    ),
]
Estimate = Annotated[
    bool,
    typer.Option(
        "--estimate",
        "--plan",
        help="List the runs that are there, can run now or follow, with frames, hours and claims, and end.",
    ),
]
Cache = Annotated[Path, typer.Option(help="Folder for features, alignments and pre-trained stacks.")]

HELP = """Repeat experiments of five papers, small: real gradients on speech, a virtual cluster, judged claims.

Example: murmur papers --an4 corpora/an4 --librispeech corpora/librispeech --out runs/papers --jobs 2

murmur papers asgd rings --librispeech corpora/librispeech --out runs/papers

murmur papers --rows results/papers.jsonl --out docs          (the page again, from rows alone)

murmur papers --estimate                                      (the runs that are next, hours, claims)

base: one learner of every network. frequency: how often to average models (Rosciszewski and Kaliski). schedules:
natural gradient, pre-training (Su and Chen). asgd: asynchronous SGD against K-step averaging (Cong et al.). rings,
stragglers: fixed and randomised rings, delay-by-one, slow learners (Cui et al.). turns: 16 learners against one from
1,500 to 24,000 turns. largest: the largest minibatch of four strategies, and the time to a loss. hierarchy: 8 x 8
learners (Zhang et al.).

Every run is a row. After an interruption the same command continues. turns and largest take about 120 hours of a
processor core, all others about 60; the runs on which the claims without loss rest come first.
"""


@app.command("papers", help=HELP)
def papers_command(
    names: Names = None,
    an4: An4 = None,
    librispeech: LibriSpeech = None,
    rows: Finished = Path("runs/papers/papers.jsonl"),
    out: Out = Path("runs/papers"),
    cache: Cache = Path("runs/cache"),
    jobs: Jobs = 1,
    device: Device = "cpu",
    estimate: Estimate = False,
) -> None:
    chosen = studies(names or list(STUDIES))
    if estimate:
        tell_plan(Console(), chosen, on_newest_builds(known_rows(Rows(rows))))
        return
    corpora = {name: path for name, path in (("an4", an4), ("librispeech", librispeech)) if path is not None}
    found = Rows(rows)
    if not corpora and (not rows.is_file() or (found.read() and not known_rows(found))):  # an empty page, over another
        raise SettingError(f"there are no rows in {rows}: give --an4 or --librispeech, or name a file of rows")
    folder_to_write(out, "--out")
    file_to_write(rows, "--rows")
    refuse_other_page(out)
    material = StudyMaterial(corpora, cache, checked_device(device))
    for network in material.networks:
        task_to_do(material.network_task(network))
    with ExitStack() as locks:
        for path in {out / LOCK, rows.parent / LOCK}:
            locks.enter_context(locked(path))
        complete = write_all(chosen, material, Rows(rows), out, jobs)
    raise typer.Exit(0 if complete else 1)


def write_all(chosen: Sequence[Study], material: StudyMaterial, rows: Rows, out: Path, jobs: int) -> bool:
    """Run the missing cells whose speech is there, and write the page; True if every claim of these runs is judged."""
    torch.set_num_threads(1)
    console = Console()
    if material.corpora:
        run_missing(console, chosen, material, rows, jobs)
    known = on_newest_builds(known_rows(rows))
    if others := len(rows.read()) - len(known):
        told = f"{counted(others, 'row')} of another version or of earlier builds of the data {are(others)} left out"
        console.print(told, highlight=False)
    page = write(known, out)
    console.print(f"{page}", highlight=False, soft_wrap=True)
    results, ours = outcomes(chosen, Finder(known)), {name for _, claim, name in claims() if claim.judge is not None}
    return not any(outcome is None and name in ours for name, outcome in results.items())


def tell_plan(console: Console, chosen: Sequence[Study], known: dict[str, Row]) -> None:
    """Print the runs that are there or can run now, with the claims that they serve, and the hours of the latter."""
    plan = whole(chosen, known)
    for each in plan:
        state = "there" if each.known else f"about {60 * hours(each.cell):.0f} min"
        console.print(f"{each.cell.told}: {state}; {', '.join(each.serves)}", highlight=False, soft_wrap=True)
    every = foreseen(chosen, Finder(known))
    shown = {each.cell.digest for each in plan}
    for each in every:
        if not each.known and each.cell.digest not in shown:
            told = f"later, with the best rate: about {60 * hours(each.cell):.0f} min"
            console.print(f"{each.cell.told}: {told}; {', '.join(each.serves)}", highlight=False, soft_wrap=True)
    console.print(lacking([each.cell for each in plan if not each.known]), highlight=False, soft_wrap=True)
    left = [each.cell for each in every if not each.known]
    frames, spent = sum(cell.budget for cell in left) / 1e6, sum(map(hours, left))
    told = (
        f"in all, {counted(len(left), 'run')} with {frames:,.0f} M frames are left: about {spent:.0f} processor hours"
    )
    console.print(told, highlight=False, soft_wrap=True)


def lacking(cells: Sequence[StudyCell]) -> str:
    """The number of missing cells and their hours; later ones depend on their rows."""
    return f"{counted(len(cells), 'run')} can run now: about {sum(map(hours, cells)):.1f} processor hours"


def hours(cell: StudyCell) -> float:
    """About the processor hours of a run without decoding."""
    gradients = cell.turns * cell.training
    return (cell.budget * cell.setup.frame_seconds + gradients * cell.setup.gradient_seconds) / 3600


def run_missing(console: Console, chosen: Sequence[Study], material: StudyMaterial, rows: Rows, jobs: int) -> None:
    """Run the missing cells, the most urgent first, until the studies ask for no more."""
    first = missing(chosen, on_newest_builds(known_rows(rows)), material.networks)
    if not first:
        return
    refuse_other_machines(rows, {cell.network for cell in first}, machine(material.device))
    builds = prepared(console, {cell.network for cell in missing(chosen, {}, material.networks)}, material)

    def left() -> list[StudyCell]:
        return missing(chosen, of_builds(known_rows(rows), builds), material.networks)

    console.print(lacking(left()), highlight=False, soft_wrap=True)
    if others := len(known_rows(rows)) - len(of_builds(known_rows(rows), builds)):
        told = f"{counted(others, 'row')} of other builds of the data {are(others)} made again where a claim needs them"
        console.print(told, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with bar_of(*columns, console=console) as progress:
        task = progress.add_task("runs", total=len(left()))

        def begins(cell: StudyCell) -> None:
            told = f"{cell.told}: about {60 * hours(cell):.0f} min"
            progress.console.print(told, highlight=False, soft_wrap=True)

        for done, (cell, row) in enumerate(make(left, material, jobs, begins), 1):
            rows.append(row)
            progress.console.print(line(cell, row), highlight=False, soft_wrap=True)
            progress.update(task, completed=done, total=done + len(left()))


def refuse_other_machines(rows: Rows, networks: Collection[Name], here: Mapping[str, str]) -> None:
    """Check that rows of the networks of one machine are of `here`; raise SettingError if they are not."""
    own = [row for row in known_rows(rows).values() if row["cell"]["network"] in networks]
    others = [row for row in own if SETUPS[row["cell"]["network"]].one_machine and elsewhere(row, {**row, **here})]
    if others:
        told = "; ".join(sorted({f"{row['hardware']} ({row['processor']}), torch {row['torch']}" for row in others}))
        raise SettingError(
            f"{rows.path} holds rows that were made on {told}. This is {here['hardware']} ({here['processor']}), torch"
            f" {here['torch']}, and rows of different machines are not compared: go on there, or begin another file of"
            " rows with --rows"
        )


def prepared(console: Console, names: Collection[Name], material: StudyMaterial) -> dict[str, str]:
    """Make the data of some networks, and return the digests of their builds, by network."""
    builds: dict[str, str] = {}
    for network in material.networks:
        if network in names:
            console.print(f"preparing the data of {network}", highlight=False)
            task = material.network_task(network)
            task.prepare()
            builds[network] = build_of(task)
    return builds


def refuse_other_page(out: Path) -> None:
    page = out / PAGE
    if page.is_file() and not page.read_text(encoding="utf-8", errors="replace").startswith(HEAD.splitlines()[0]):
        raise SettingError(f"{page} was not written by murmur papers: give another --out, or move it away")


def checked_device(device: str) -> str:
    if not is_present(device):
        raise SettingError(f"--device {device}: this host has no such device; cpu computes the same runs")
    return device


def studies(names: Sequence[str]) -> list[Study]:
    for name in names:
        if name not in STUDIES:
            raise SettingError(f"there is no study {name!r}{nearest(name, list(STUDIES))}")
    return [STUDIES[name] for name in names]


def line(cell: StudyCell, row: Row) -> str:
    end = "diverged" if diverged(row) else f"held-out loss {loss(row):.4f}"
    return f"{cell.told}: {end}; {row['cpu_seconds']:.0f} processor s"
