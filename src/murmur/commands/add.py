"""`murmur add`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from murmur.commands.options import Trust
from murmur.run.add_learner import one_more
from murmur.run.agreed_folder import FolderMember
from murmur.run.learner import run_learner

app = typer.Typer(add_completion=False)


@app.command("add")
def add(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder (--out) of the running experiment.")],
    secret_file: Annotated[Path, typer.Option(help="Secret file that the run was started with.")],
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
    """
    added, member = one_more(run, secret_file, threads, trust), FolderMember(run)
    ended = run_learner(added.request, added.experiment, added.place, begins=lambda _: member.begin())
    raise typer.Exit(member.end(*ended))
