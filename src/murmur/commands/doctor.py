"""`murmur doctor`."""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from murmur.commands.options import Settings
from murmur.core.counted import counted
from murmur.core.group import PeerLost
from murmur.core.path_checks import file_to_write, not_inputs
from murmur.core.printable import say
from murmur.core.world import Seat
from murmur.engine.checkpoints.checkpoint import write_whole
from murmur.run.configuration import resolved
from murmur.run.host_checks import HostFinding, check_host
from murmur.run.network_checks import Learned, examine, host_name
from murmur.run.timed import timed
from murmur.worlds.process.launch.environment import Place, place_of
from murmur.worlds.process.launch.launcher import Launch
from murmur.worlds.process.world import ProcessWorld

app = typer.Typer(add_completion=False)
TIMEOUT_SECONDS = 60.0


Source = Annotated[
    str | None,
    typer.Argument(metavar="[EXPERIMENT]", help="Also check that all learners resolve this experiment alike."),
]
Learners = Annotated[int, typer.Option(min=1, help="Learners to start on this host; under torchrun its own number.")]
Out = Annotated[Path, typer.Option(help="Future folder of runs; its disk is checked.")]
Findings = Annotated[Path | None, typer.Option("--json", help="Also write the findings to this file as JSON.")]


@app.command()
def doctor(
    source: Source = None,
    settings: Settings = None,
    learners: Learners = 2,
    out: Out = Path("runs"),
    findings: Findings = None,
) -> None:
    """Check this machine for causes of failed or slow runs: libraries, store, network, cores, disk, memory.

    Example: murmur doctor

    Across hosts, with the experiment that will run there:

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29400 -m murmur doctor FILE

    Each check prints one line: ok, warn or bad, with a remedy. The exit status is 1 if a check is bad.
    """
    if findings is not None:
        file_to_write(findings, "--json")
        not_inputs([findings], "--json", [source])
    digest = resolved(source, settings or ()).digest() if source is not None else "none given"
    place = place_of()
    if place is not None:
        raise typer.Exit(be_learner(place, digest, out, findings))
    with timed(f"libraries, and {counted(learners, 'learner')} exchanging vectors"):
        found = [*check_host(out, learners), *launch(source, settings or (), learners)]
    raise typer.Exit(tell(found, findings))


def launch(source: str | None, settings: Sequence[str], learners: int) -> list[HostFinding]:
    """Start learners on this host that examine the network between them."""
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "found.json"

        def command(place: Place, resume: bool) -> list[str]:  # noqa: ARG001 - all learners are started alike
            words = [sys.executable, "-m", "murmur", "doctor", "--json", str(answer)]
            words += [] if source is None else [source]
            return [*words, *(word for setting in settings for word in ("--set", setting))]

        status = Launch(command, learners).run()
        if not answer.is_file():
            remedy = "look at the messages above; is a firewall between processes of this host?"
            return [HostFinding("bad", "learners", f"ended with status {status} before they had met", remedy)]
        return [HostFinding(**each) for each in json.loads(answer.read_text(encoding="utf-8"))]


def be_learner(place: Place, digest: str, out: Path, findings: Path | None) -> int:
    """Examine the network as one learner of a launch; under another launcher learner 0 prints the findings."""
    ours = place.store == "murmur"
    own = () if ours or place.local_rank > 0 else tuple(check_host(out, place.local_size))
    mine = Learned(host_name(), platform.python_version(), torch.__version__, digest, own)

    async def program(seat: Seat) -> list[HostFinding]:
        return await examine(seat, mine)

    try:
        found = ProcessWorld(place, timeout_seconds=TIMEOUT_SECONDS).run(program)[0]
    except (PeerLost, ConnectionError) as error:
        remedy = "is the store's host reachable from here, and its port open?"
        found = [HostFinding("bad", "store", f"learner {place.rank}: {error}", remedy)]
        return tell(found, None)
    if place.rank > 0:
        return int(any(each.level == "bad" for each in found))
    if not ours:
        return tell(found, findings)
    if findings is not None:
        save(found, findings)
    return 0


def tell(found: Sequence[HostFinding], findings: Path | None) -> int:
    """Print the findings, the worst last; return 1 if one is bad, else 0."""
    order = ("ok", "warn", "bad")
    for finding in sorted(found, key=lambda each: order.index(each.level)):
        say(str(finding))
    if findings is not None:
        save(found, findings)
    return int(any(each.level == "bad" for each in found))


def save(found: Sequence[HostFinding], path: Path) -> None:
    """Write the findings as JSON."""
    write_whole(path, json.dumps([asdict(each) for each in found], indent=1).encode())
