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
from murmur.core.group import PeerLost
from murmur.core.path_checks import file_to_write
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
    str | None, typer.Argument(metavar="[EXPERIMENT]", help="Check that all learners resolve it alike, too.")
]
Learners = Annotated[int, typer.Option(min=1, help="Learners to start here; torchrun's own count under it.")]
Out = Annotated[Path, typer.Option(help="Where runs will be written: the disk that is looked at.")]
Findings = Annotated[Path | None, typer.Option("--json", help="Write what was found as JSON to this file, too.")]


@app.command()
def doctor(
    source: Source = None,
    settings: Settings = None,
    learners: Learners = 2,
    out: Out = Path("runs"),
    findings: Findings = None,
) -> None:
    """Look for what makes runs fail or crawl: libraries, store, network between learners, cores, disk, memory.

    Example: murmur doctor

    Across hosts, with the experiment that will run there:

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29400 -m murmur doctor FILE

    One line for each thing that was looked at, ok, warn or bad, with the remedy. The status is 1 if anything is bad.
    """
    if findings is not None:
        file_to_write(findings, "--json")
    digest = resolved(source, settings or ()).digest() if source is not None else "none given"
    place = place_of()
    if place is not None:
        raise typer.Exit(be_learner(place, digest, out, findings))
    with timed(f"libraries, and {learners} learners that exchange vectors"):
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
    """Examine the network as one learner of a launch; learner 0 of a launch that is not ours tells the findings."""
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
    """Print the findings, worst last, where they are seen; 1 if one is bad."""
    order = ("ok", "warn", "bad")
    for finding in sorted(found, key=lambda each: order.index(each.level)):
        typer.echo(str(finding))
    if findings is not None:
        save(found, findings)
    return int(any(each.level == "bad" for each in found))


def save(found: Sequence[HostFinding], path: Path) -> None:
    """The findings as JSON."""
    write_whole(path, json.dumps([asdict(each) for each in found], indent=1).encode())
