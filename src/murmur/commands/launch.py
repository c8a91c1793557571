"""`murmur launch`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from murmur.commands.options import Threads, grouped
from murmur.core.errors import SettingError
from murmur.execution.workers import cores_here
from murmur.worlds.process.environment import threads_per_learner
from murmur.worlds.process.launcher import SAVING_SECONDS, Launch, Restart
from murmur.worlds.process.secret import draw, from_file

app = typer.Typer(add_completion=False)
OnFailure = Literal["all", "alone"]
RESTART: Mapping[OnFailure, Restart] = {"all": Restart.TOGETHER, "alone": Restart.ALONE}
LARGEST_PORT = 65535
ANY = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


@dataclass(frozen=True)
class Failures:
    """The launch after a failure, and after a request to stop.

    Attributes:
        restarts: Restarts of each learner that fails, by the same command.
        on_failure: all: when a learner fails, all start again, or end when it has no restart left. alone: only that one
            does, and the others go on, also without it; for strategies that tolerate losses.
        grace_seconds: Longest wait for the learners to save and end after SIGTERM; then they are killed.
    """

    restarts: Annotated[int, typer.Option(min=0)] = 0
    on_failure: OnFailure = "all"
    grace_seconds: Annotated[float, typer.Option(min=0)] = SAVING_SECONDS


@dataclass(frozen=True)
class Hosts:
    """Hosts that train together: this command is started on each of them.

    Attributes:
        hosts: Number of hosts.
        host_number: Number of this host; 0 is the first one.
        meet: HOST:PORT, the address of the first host and a free port there.
        secret_file: File with a secret, readable by you alone, for other hosts and murmur add.
    """

    hosts: Annotated[int, typer.Option(min=1)] = 1
    host_number: Annotated[int, typer.Option(min=0)] = 0
    meet: str = "127.0.0.1:0"
    secret_file: Path | None = None

    def __post_init__(self) -> None:
        _, port = self.meeting_point
        if self.host_number >= self.hosts or (self.hosts > 1 and (self.secret_file is None or port == 0)):
            raise SettingError(
                "several hosts need --hosts N, --host-number 0 to N - 1, --meet HOST:PORT with a free port of the first"
                " host, and --secret-file with a copy of one file on each"
            )

    @property
    def meeting_point(self) -> tuple[str, int]:
        host, _, port = self.meet.rpartition(":")
        if not host or not port.isdecimal() or int(port) > LARGEST_PORT:
            raise SettingError(f"--meet {self.meet} is not HOST:PORT, such as a:29500")
        return host, int(port)


@app.command(context_settings=ANY)
@grouped
def launch(
    ctx: typer.Context,
    program: Annotated[Path, typer.Argument(help="A Python program that calls murmur.join.")],
    learners: Annotated[int, typer.Option(min=1, help="Processes to start on this host.")] = 2,
    threads: Threads = None,
    out: Annotated[Path | None, typer.Option(resolve_path=True, help="Folder for run.json, records and trace.")] = None,
    *,
    lost: Failures,
    together: Hosts,
) -> None:
    """Start a program as several learners; the words after its name are its arguments.

    Example: murmur launch --learners 2 examples/my_own_loop.py

    murmur launch --learners 4 --restarts 1 --on-failure alone my_loop.py

    Two hosts, the first of them named a; on the second one with --host-number 1:

    murmur launch --hosts 2 --host-number 0 --meet a:29500 --secret-file secret --learners 4 my_loop.py
    """
    if together.hosts > 1 and lost.restarts > 0 and lost.on_failure == "all":
        raise SettingError("a launch cannot end the learners of other hosts: give --on-failure alone with --restarts")
    if not program.is_file():
        raise FileNotFoundError(f"there is no program {program}")
    command = [sys.executable, str(program), *ctx.args]

    each = threads or threads_per_learner(cores_here(), learners)
    host, port = together.meeting_point
    launched = Launch(
        *(lambda _, __: command, learners, lost.restarts, RESTART[lost.on_failure], host),
        threads=each,
        secret=draw() if together.secret_file is None else from_file(together.secret_file),
        grace_seconds=lost.grace_seconds,
        out=str(out or ""),
        hosts=together.hosts,
        number=together.host_number,
        port=port,
    )
    raise typer.Exit(launched.run())
