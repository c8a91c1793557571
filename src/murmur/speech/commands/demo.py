"""`murmur demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from murmur.core.path_checks import folder_to_write
from murmur.speech.recipes.demo import run_demo

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and their common data.")] = Path("runs/demo"),
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace runs of other experiments in --out; other files there stay."),
    ] = False,
) -> None:
    """Synthesise a corpus of digits, train with one learner and with two, and compare their word error rates.

    After an interruption the same command continues; finished parts are not repeated.

    Example: murmur demo
    """
    folder_to_write(out, "--out")
    raise typer.Exit(run_demo(out, force))
