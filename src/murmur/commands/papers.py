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
from murmur.studies.papers.page import HEAD, PAGE, write
from murmur.studies.papers.run import MissingRun, Runner
from murmur.studies.papers.study import Study

app = typer.Typer(add_completion=False)
Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME...]", help=f"Of {', '.join(STUDIES)}; all otherwise.")
]
Corpus = Annotated[Path | None, typer.Option(help="AN4's folder; without it nothing is trained, only pages are made.")]
Kept = Annotated[Path, typer.Option("--rows", help="File of the rows; runs that it holds are not made again.")]
Out = Annotated[Path, typer.Option(help="Folder for papers.md and its picture.")]
Cache = Annotated[Path, typer.Option(help="Folder for features, alignments and pre-trained stacks.")]

HELP = """The experiments of five papers, small: real gradients on AN4, a virtual cluster, conclusions judged.

Example: murmur papers --corpus corpora/an4 --out runs/papers

murmur papers asgd rings --corpus corpora/an4 --out runs/papers

murmur papers --rows results/papers.jsonl --out docs          (the page again, from rows alone)

frequency: how often to average models (Rosciszewski and Kaliski). schedules: natural gradient, pre-training (Su and
Chen). asgd: asynchronous SGD against K-step averaging (Cong et al.). stragglers, rings: fixed and randomised rings,
delay-by-one, slow learners, large minibatches (Cui et al.). hierarchy: 8 x 8 learners (Zhang et al.).

Every run is a row; what was cut off goes on where it was. About a quarter of an hour of processor time in all.
"""


@app.command("papers", help=HELP)
def papers_command(
    names: Names = None,
    corpus: Corpus = None,
    kept: Kept = Path("runs/papers/papers.jsonl"),
    out: Out = Path("runs/papers"),
    cache: Cache = Path("runs/cache"),
) -> None:
    chosen = studies(names or list(STUDIES))
    if corpus is None and not kept.is_file():  # the page of no runs would take another one's place
        raise SettingError(f"there are no rows in {kept}: give --corpus to make them, or name a file of rows")
    folder_to_write(out, "--out")
    file_to_write(kept, "--rows")
    refuse_other_page(out)
    if corpus is not None:
        task_to_do(StudyMaterial(corpus, cache).supervised)
    with ExitStack() as locks:
        for path in {out / LOCK, kept.parent / LOCK}:
            locks.enter_context(locked(path))
        whole = make(chosen, corpus, cache, kept, out)
    raise typer.Exit(0 if whole else 1)


def make(chosen: Sequence[Study], corpus: Path | None, cache: Path, kept: Path, out: Path) -> bool:
    """Run what is missing, where there is a corpus, and write the page; whether all runs are there."""
    torch.set_num_threads(1)
    console = Console()
    material = None if corpus is None else StudyMaterial(corpus, cache)
    if material is not None:
        with console.status("preparing the data"):
            material.supervised.prepare()

    def tell(cell: StudyCell, row: Row) -> None:
        console.print(line(cell, row), highlight=False, soft_wrap=True)

    run, whole = Runner(Rows(kept), material, tell), True
    for study in chosen:
        try:
            console.print(findings_table(study, run))
        except MissingRun as error:
            whole = False
            console.print(f"{study.name}: {error}; give --corpus to make it", highlight=False, soft_wrap=True)
    page = write(Runner(Rows(kept)), out)
    console.print(f"{page}", highlight=False, soft_wrap=True)
    return whole


def refuse_other_page(out: Path) -> None:
    """Do not replace a page that this command has not written.

    Raises:
        SettingError: there is one; names it.
    """
    page = out / PAGE
    if page.is_file() and not page.read_text(encoding="utf-8", errors="replace").startswith(HEAD.splitlines()[0]):
        raise SettingError(f"{page} was not written by murmur papers: give another --out, or move it away")


def studies(names: Sequence[str]) -> list[Study]:
    """The studies of these names.

    Raises:
        SettingError: there is none of a name.
    """
    for name in names:
        if name not in STUDIES:
            raise SettingError(f"there is no study {name!r}{nearest(name, list(STUDIES))}")
    return [STUDIES[name] for name in names]


def line(cell: StudyCell, row: Row) -> str:
    """A run that has ended."""
    loss = row["heldout"].get("loss")
    end = "diverged" if loss is None else f"held-out loss {loss:.4f}"
    return f"{cell.told}, {cell.optimizer}: {end}; {row['seconds']:.0f} virtual s, {row['cpu_seconds']:.0f} processor s"


def findings_table(study: Study, run: Runner) -> TerminalTable:
    """What a study found."""
    table = TerminalTable(("conclusion", "published", "here", ""), title=study.name)
    for finding in study.findings(study.runs(run)):
        table.add_row(finding.claim, finding.published, finding.ours, finding.verdict)
    return table
