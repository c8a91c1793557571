"""`murmur launch`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from murmur.execution.cores import cores_here
from murmur.worlds.process.launch.environment import Place, threads_per_learner
from murmur.worlds.process.launch.launcher import Launch

app = typer.Typer(add_completion=False)
ANY = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


@app.command(context_settings=ANY)
def launch(
    ctx: typer.Context,
    program: Annotated[Path, typer.Argument(help="A Python program that calls murmur.join.")],
    learners: Annotated[int, typer.Option(min=1, help="Processes to start on this host.")] = 2,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Compute threads per learner; an equal share of the cores by default.")
    ] = None,
) -> None:
    """Start a program as several learners; the words after its name are its arguments.

    Example: murmur launch --learners 2 examples/my_own_loop.py
    """
    if not program.is_file():
        raise FileNotFoundError(f"there is no program {program}")
    command = [sys.executable, str(program), *ctx.args]

    def of_learner(place: Place, resume: bool) -> list[str]:  # noqa: ARG001 - all learners are started alike
        return command

    each = threads or threads_per_learner(cores_here(), learners)
    raise typer.Exit(Launch(of_learner, learners, threads=each).run())
