"""`murmur papers`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from murmur.core.errors import SettingError, nearest
from murmur.core.path_checks import file_to_write, folder_to_write
from murmur.report.terminal_table import TerminalTable
from murmur.run.folder.lock import LOCK, locked
from murmur.run.task_checks import task_to_do
from murmur.studies.comparison.rows import Row, Rows
from murmur.studies.papers.all import STUDIES
from murmur.studies.papers.cell import StudyCell, StudyMaterial
from murmur.studies.papers.missing import bar, make, missing, processor_hours
from murmur.studies.papers.page import HEAD, PAGE, write
from murmur.studies.papers.run import MissingRun, Runner
from murmur.studies.papers.study import Study

app = typer.Typer(add_completion=False)
Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME...]", help=f"Any of {', '.join(STUDIES)}; all by default.")
]
Corpus = Annotated[
    Path | None, typer.Option(help="Folder of AN4; without it nothing is trained, and only the page is made.")
]
Finished = Annotated[Path, typer.Option("--rows", help="File of the rows; runs that it holds are not repeated.")]
Out = Annotated[Path, typer.Option(help="Folder for papers.md and its picture.")]
Jobs = Annotated[int, typer.Option(min=1, help="Number of runs at the same time, each in a process of its own.")]
Estimate = Annotated[bool, typer.Option("--estimate", help="List the runs that are missing and their hours, and end.")]
Cache = Annotated[Path, typer.Option(help="Folder for features, alignments and pre-trained stacks.")]

HELP = """Repeat experiments of five papers, small: real gradients on AN4, a virtual cluster, judged conclusions.

Example: murmur papers --corpus corpora/an4 --out runs/papers

murmur papers asgd rings --corpus corpora/an4 --out runs/papers

murmur papers --rows results/papers.jsonl --out docs          (the page again, from rows alone)

frequency: how often to average models (Rosciszewski and Kaliski). schedules: natural gradient, pre-training (Su and
Chen). asgd: asynchronous SGD against K-step averaging (Cong et al.). stragglers, rings: fixed and randomised rings,
delay-by-one, slow learners, large minibatches; many: 128 learners (Cui et al.). hierarchy: 8 x 8 learners (Zhang et
al.).

murmur papers rings --corpus corpora/an4 --estimate            (missing runs and their hours)

Every run is a row. After an interruption the same command continues. All studies but many take about 15 minutes of
processor time, and many about an hour; --jobs 4 makes four runs at a time.
"""


@app.command("papers", help=HELP)
def papers_command(
    names: Names = None,
    corpus: Corpus = None,
    rows: Finished = Path("runs/papers/papers.jsonl"),
    out: Out = Path("runs/papers"),
    cache: Cache = Path("runs/cache"),
    jobs: Jobs = 1,
    estimate: Estimate = False,
) -> None:
    chosen = studies(names or list(STUDIES))
    if estimate:
        tell_missing(Console(), chosen, rows, jobs)
        return
    if corpus is None and not rows.is_file():  # an empty page would replace an earlier one
        raise SettingError(f"there are no rows in {rows}: give --corpus to make them, or name a file of rows")
    folder_to_write(out, "--out")
    file_to_write(rows, "--rows")
    refuse_other_page(out)
    if corpus is not None:
        task_to_do(StudyMaterial(corpus, cache).supervised)
    with ExitStack() as locks:
        for path in {out / LOCK, rows.parent / LOCK}:
            locks.enter_context(locked(path))
        complete = write_all(chosen, None if corpus is None else StudyMaterial(corpus, cache), rows, out, jobs)
    raise typer.Exit(0 if complete else 1)


def write_all(chosen: Sequence[Study], material: StudyMaterial | None, rows: Path, out: Path, jobs: int) -> bool:
    """Run the missing cells, if there is material, and write the page; True if all runs exist."""
    torch.set_num_threads(1)
    console = Console()
    if material is not None:
        with console.status("preparing the data"):
            material.supervised.prepare()
        run_missing(console, chosen, material, rows, jobs)
    run, complete = Runner(Rows(rows)), True
    for study in chosen:
        try:
            console.print(findings_table(study, run))
        except MissingRun as error:
            complete = False
            console.print(f"{study.name}: {error}; give --corpus to make it", highlight=False, soft_wrap=True)
    page = write(Runner(Rows(rows)), out)
    console.print(f"{page}", highlight=False, soft_wrap=True)
    return complete


def tell_missing(console: Console, chosen: Sequence[Study], rows: Path, jobs: int) -> None:
    """Print the missing runs that are known, and about the time that they take."""
    kept = Rows(rows)
    cells = missing(chosen, Runner(kept))
    for cell in cells:
        console.print(f"{cell.told}, {cell.optimizer}", highlight=False, soft_wrap=True)
    hours = processor_hours(cells, kept.read())
    at_once = f", {hours / jobs:.1f} h with {jobs} at a time" if jobs > 1 else ""
    runs = f"{len(cells)} run{'s' * (len(cells) != 1)} missing"
    more = "; runs that depend on their results may follow" if cells else ""
    console.print(f"{runs}: about {hours:.1f} processor hours{at_once}{more}", highlight=False, soft_wrap=True)


def run_missing(console: Console, chosen: Sequence[Study], material: StudyMaterial, rows: Path, jobs: int) -> None:
    """Run the missing cells, until the studies ask for no more."""
    kept = Rows(rows)
    with bar(console) as progress:
        task = progress.add_task("runs", total=0)
        done = 0
        while cells := missing(chosen, Runner(kept)):
            hours = processor_hours(cells, kept.read())
            told = f"{len(cells)} missing: about {hours:.1f} processor hours, {jobs} at a time"
            progress.console.print(told, highlight=False, soft_wrap=True)
            progress.update(task, total=done + len(cells))
            for cell, row in make(cells, material, jobs):
                kept.append(row)
                done += 1
                progress.console.print(line(cell, row), highlight=False, soft_wrap=True)
                progress.update(task, completed=done)


def refuse_other_page(out: Path) -> None:
    """Refuse to replace a page that this command has not written.

    Raises:
        SettingError: there is such a page; the message names it.
    """
    page = out / PAGE
    if page.is_file() and not page.read_text(encoding="utf-8", errors="replace").startswith(HEAD.splitlines()[0]):
        raise SettingError(f"{page} was not written by murmur papers: give another --out, or move it away")


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
    loss = row["heldout"].get("loss")
    end = "diverged" if loss is None else f"held-out loss {loss:.4f}"
    return f"{cell.told}, {cell.optimizer}: {end}; {row['seconds']:.0f} virtual s, {row['cpu_seconds']:.0f} processor s"


def findings_table(study: Study, run: Runner) -> TerminalTable:
    """Table of a study's findings."""
    table = TerminalTable(("conclusion", "published", "here", ""), title=study.name)
    for finding in study.findings(study.runs(run)):
        table.add_row(finding.claim, finding.published, finding.ours, finding.verdict)
    return table
