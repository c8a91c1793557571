"""`murmur launch`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from murmur.execution.cores import cores_here
from murmur.worlds.process.launch.environment import Place, threads_per_learner
from murmur.worlds.process.launch.launcher import SAVING_SECONDS, Launch, Restart

app = typer.Typer(add_completion=False)
OnFailure = Literal["all", "alone"]
RESTART: Mapping[OnFailure, Restart] = {"all": Restart.TOGETHER, "alone": Restart.ALONE}
ANY = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


@app.command(context_settings=ANY)
def launch(
    ctx: typer.Context,
    program: Annotated[Path, typer.Argument(help="A Python program that calls murmur.join.")],
    learners: Annotated[int, typer.Option(min=1, help="Processes to start on this host.")] = 2,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Compute threads per learner; an equal share of the cores by default.")
    ] = None,
    restarts: Annotated[int, typer.Option(min=0, help="Restarts of each learner that fails, by the same command.")] = 0,
    on_failure: Annotated[
        OnFailure,
        typer.Option(
            help="all: when a learner fails, all start again, or end when it has no restart left. alone: only that one"
            " does, and the others go on, also without it; for strategies that tolerate losses."
        ),
    ] = "all",
    grace_seconds: Annotated[
        float,
        typer.Option(min=0, help="Longest wait for the learners to save and end after SIGTERM; then they are killed."),
    ] = SAVING_SECONDS,
) -> None:
    """Start a program as several learners; the words after its name are its arguments.

    Example: murmur launch --learners 2 examples/my_own_loop.py

    murmur launch --learners 4 --restarts 1 --on-failure alone my_asynchronous_loop.py
    """
    if not program.is_file():
        raise FileNotFoundError(f"there is no program {program}")
    command = [sys.executable, str(program), *ctx.args]

    def of_learner(place: Place, resume: bool) -> list[str]:  # noqa: ARG001 - all learners are started alike
        return command

    each = threads or threads_per_learner(cores_here(), learners)
    on = RESTART[on_failure]
    raise typer.Exit(Launch(of_learner, learners, restarts, on, threads=each, grace_seconds=grace_seconds).run())
