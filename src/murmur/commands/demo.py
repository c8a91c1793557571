"""`murmur demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from murmur.core.path_checks import folder_to_write
from murmur.recipes.demo import run_demo

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and what they share.")] = Path("runs/demo"),
    force: Annotated[
        bool, typer.Option("--force", help="Replace runs of other experiments that are in --out: their files alone.")
    ] = False,
) -> None:
    """From nothing to a word error rate: synthesise digits, train with one learner and with two, compare.

    What is done is not done again: the same command goes on where it was cut off.

    Example: murmur demo
    """
    folder_to_write(out, "--out")
    raise typer.Exit(run_demo(out, force))
