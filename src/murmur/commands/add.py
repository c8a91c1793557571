"""`murmur add`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from murmur.commands.options import Trust
from murmur.execution.workers import cores_here
from murmur.run.learner import beside, one_more, run_learner
from murmur.run.training import FolderMember
from murmur.worlds.process.environment import Place, child_variables, threads_per_learner
from murmur.worlds.process.secret import unnamed_file

app = typer.Typer(add_completion=False)


@app.command("add")
def add(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder (--out) of the running experiment.")],
    secret_file: Annotated[Path, typer.Option(help="Secret file that the run was started with.")],
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- PROGRAM ARGUMENTS]", help="The program of a run of murmur launch."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Compute threads; an equal share of the cores by default.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Add a learner to a running experiment; the other learners do not stop.

    The run must have been started with a secret file and with a strategy that accepts new learners (KAVG, BMUF, SlowMo,
    DiLoCo, AdaptiveKAVG, ParameterAveraging, ADPSGD, A2CiD2, QuasiGlobal). The new learner receives the weights of the
    others and takes part until the budget ends. It may be killed like any other learner. On another host it needs the
    same files under the same names.

    Example: murmur add runs/two --secret-file secret

    The run of this example was started by:

    (umask 077; head -c 32 /dev/urandom | base64 > secret)

    murmur train ctc --learners 2 --secret-file secret --out runs/two

    A loop of your own, started by murmur launch --secret-file secret --out runs/loop my_loop.py --epochs 3:

    murmur add runs/loop --secret-file secret -- my_loop.py --epochs 3
    """
    if program:
        become(program, beside(run, secret_file), threads or threads_per_learner(cores_here(), 2))
    added, member = one_more(run, secret_file, threads, trust), FolderMember(run)
    ended = run_learner(added.request, added.experiment, added.place, begins=lambda _: member.begin())
    raise typer.Exit(member.end(*ended))


def become(words: Sequence[str], place: Place, threads: int) -> NoReturn:
    """Replace this process by a Python program at a place of a run."""
    with unnamed_file(place.secret) as secret:
        os.set_inheritable(secret.fileno(), True)
        os.execve(sys.executable, [sys.executable, *words], child_variables(place, threads, secret.fileno()))
