"""`murmur papers`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from murmur.core.counted import are, counted
from murmur.core.errors import SettingError, nearest
from murmur.core.path_checks import file_to_write, folder_to_write
from murmur.report.terminal_table import TerminalTable
from murmur.run.folder.lock import LOCK, locked
from murmur.run.task_checks import task_to_do
from murmur.studies.comparison.rows import Row, Rows
from murmur.studies.papers.all import STUDIES
from murmur.studies.papers.cell import StudyCell, StudyMaterial
from murmur.studies.papers.missing import bar, make
from murmur.studies.papers.networks import Name
from murmur.studies.papers.page import HEAD, PAGE, not_yet, write
from murmur.studies.papers.plan import STAGES, hours, missing, outcomes, several_builds, whole
from murmur.studies.papers.run import Finder, build_of, diverged, known_rows, loss, newest_builds, of_builds
from murmur.studies.papers.study import Study

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
Out = Annotated[Path, typer.Option(help="Folder for papers.md and its pictures.")]
Jobs = Annotated[int, typer.Option(min=1, help="Number of runs at the same time, each in a process of its own.")]
Device = Annotated[
    str,
    typer.Option(
        help="cpu, or a GPU such as cuda: it computes the gradients of all learners of a run in one call, for networks"
        " and optimizers that allow it."
    ),
]
Estimate = Annotated[
    bool, typer.Option("--estimate", help="List the runs, their hours and the claims that they serve, and end.")
]
Cache = Annotated[Path, typer.Option(help="Folder for features, alignments, pre-trained stacks and trained models.")]

HELP = """Repeat experiments of five papers, small: real gradients on speech, a virtual cluster, judged claims.

Example: murmur papers --an4 corpora/an4 --librispeech corpora/librispeech --out runs/papers --jobs 2

murmur papers asgd rings --librispeech corpora/librispeech --out runs/papers

murmur papers --rows results/papers.jsonl --out docs          (the page again, from rows alone)

murmur papers --estimate                                      (the plan: runs, hours, claims)

base: one learner of every network. frequency: how often to average models (Rosciszewski and Kaliski). schedules:
natural gradient, pre-training (Su and Chen). asgd: asynchronous SGD against K-step averaging (Cong et al.). rings,
stragglers: fixed and randomised rings, delay-by-one, large minibatches, slow learners (Cui et al.). hierarchy: 8 x 8
learners (Zhang et al.).

Every run is a row. After an interruption the same command continues. All studies take about 60 hours of a processor
core; the runs on which the claims without loss rest come first.
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
        tell_plan(Console(), chosen, known_rows(Rows(rows)), jobs)
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
    """Run the missing cells whose speech is there, and write the page; True if every claim is judged."""
    torch.set_num_threads(1)
    console = Console()
    if material.corpora:
        run_missing(console, chosen, material, rows, jobs)
    there = known_rows(rows)
    if others := len(rows.read()) - len(there):
        console.print(f"{counted(others, 'row')} of another version {are(others)} left out", highlight=False)
    known = of_builds(there, newest_builds(there))
    if others := len(there) - len(known):
        console.print(f"{counted(others, 'row')} on earlier builds of the data {are(others)} left out", highlight=False)
    results = outcomes(chosen, Finder(known))
    for study in chosen:
        if study.claims:
            console.print(claims_table(study, known))
    page = write(known, out)
    console.print(f"{page}", highlight=False, soft_wrap=True)
    return None not in results.values()


def tell_plan(console: Console, chosen: Sequence[Study], known: dict[str, Row], jobs: int) -> None:
    """Print the runs of the plan with their frames, hours and claims, and the sums of those that are missing."""
    plan = whole(chosen, known)
    spent = hours([each.cell for each in plan], known)
    sums = [0.0] * len(STAGES)
    for each, took in zip(plan, spent, strict=True):
        sums[each.stage] += 0.0 if each.known else took
        state = "there" if each.known else f"{60 * took:.0f} min"
        served = ", ".join(each.serves)
        console.print(f"{each.cell.told}: {state}; {served}", highlight=False, soft_wrap=True)
    for stage, total in zip(STAGES, sums, strict=True):
        console.print(f"{stage}: {total:.1f} processor hours", highlight=False, soft_wrap=True)
    left = sum(not each.known for each in plan)
    total = sum(sums)
    at_once = f", {total / jobs:.1f} h with {jobs} at a time" if jobs > 1 else ""
    runs = f"{counted(left, 'run')} missing"
    console.print(f"{runs}: about {total:.1f} processor hours{at_once}", highlight=False, soft_wrap=True)


def run_missing(console: Console, chosen: Sequence[Study], material: StudyMaterial, rows: Rows, jobs: int) -> None:
    """Run the missing cells, the most urgent first, until the studies ask for no more."""
    there = known_rows(rows)
    if not missing(chosen, there, material.networks) and not several_builds(there.values()):
        return
    builds = prepared(console, {cell.network for cell in missing(chosen, {}, material.networks)}, material)

    def known() -> dict[str, Row]:
        return of_builds(known_rows(rows), builds)

    plan = [each.cell for each in whole(chosen, known()) if not each.known]
    total = sum(hours(plan, known()))
    told = f"{counted(len(plan), 'run')} missing: about {total:.1f} processor hours, {jobs} at a time"
    if others := len(known_rows(rows)) - len(known()):
        told += (
            f"; {counted(others, 'row')} of other builds of the data {are(others)} made again where a claim needs them"
        )
    console.print(told, highlight=False, soft_wrap=True)
    with bar(console) as progress:
        task = progress.add_task("runs", total=len(plan))

        def begins(cell: StudyCell) -> None:
            [about] = hours([cell], known())
            progress.console.print(f"{cell.told}: about {60 * about:.0f} min", highlight=False, soft_wrap=True)

        made = make(lambda: missing(chosen, known(), material.networks), material, jobs, begins)
        for done, (cell, row) in enumerate(made, 1):
            rows.append(row)
            progress.console.print(line(cell, row), highlight=False, soft_wrap=True)
            progress.update(task, completed=done, total=max(done, len(plan)))


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
    """Refuse to replace a page that this command has not written.

    Raises:
        SettingError: there is such a page; the message names it.
    """
    page = out / PAGE
    if page.is_file() and not page.read_text(encoding="utf-8", errors="replace").startswith(HEAD.splitlines()[0]):
        raise SettingError(f"{page} was not written by murmur papers: give another --out, or move it away")


def checked_device(device: str) -> str:
    """Return the name of a device.

    Raises:
        SettingError: this host has no such device.
    """
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise SettingError(f"--device {device}: this host has no such device; cpu computes the same runs")
    return device


def studies(names: Sequence[str]) -> list[Study]:
    """Return the studies of these names.

    Raises:
        SettingError: a name is unknown.
    """
    for name in names:
        if name not in STUDIES:
            raise SettingError(f"there is no study {name!r}{nearest(name, list(STUDIES))}")
    return [STUDIES[name] for name in names]


def line(cell: StudyCell, row: Row) -> str:
    """Line about a run that has ended."""
    end = "diverged" if diverged(row) else f"held-out loss {loss(row):.4f}"
    return f"{cell.told}: {end}; {row['cpu_seconds']:.0f} processor s"


def claims_table(study: Study, known: dict[str, Row]) -> TerminalTable:
    """Table of a study's claims."""
    table = TerminalTable(("claim", "published", "here", ""), title=study.name)
    results = outcomes([study], Finder(known))
    plan = whole([study], known, results)
    for (name, outcome), claim in zip(results.items(), study.claims, strict=True):
        if outcome is None:
            table.add_row(claim.told, claim.published, not_yet(plan, name), "")
        else:
            table.add_row(claim.told, claim.published, outcome.ours, outcome.verdict)
    return table
