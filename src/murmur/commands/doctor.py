"""`murmur doctor`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from murmur.commands.options import Settings, grouped
from murmur.core.counted import counted
from murmur.core.path_checks import file_to_write, not_inputs
from murmur.core.printable import say
from murmur.core.whole_files import write_whole
from murmur.run.configuration import resolved
from murmur.run.host_checks import HostFinding, check_host, examined, launched
from murmur.run.timed import timed
from murmur.worlds.process.environment import Place, place_of

app = typer.Typer(add_completion=False)

Source = Annotated[
    str | None,
    typer.Argument(metavar="[EXPERIMENT]", help="Also check that all learners resolve this experiment alike."),
]
Learners = Annotated[int, typer.Option(min=1, help="Learners to start on this host; under torchrun its own number.")]
Out = Annotated[Path, typer.Option(help="Future folder of runs; its disk is checked.")]
Findings = Annotated[Path | None, typer.Option("--json", help="Also write the findings to this file as JSON.")]


@app.command()
@grouped
def doctor(
    source: Source = None,
    settings: Settings = (),
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
    digest = resolved(source, settings).digest() if source is not None else "none given"
    place = place_of()
    if place is not None:
        raise typer.Exit(be_learner(place, digest, out, findings))
    with timed(f"libraries, and {counted(learners, 'learner')} exchanging vectors"):
        found = [*check_host(out, learners), *launched(source, settings, learners)]
    raise typer.Exit(tell(found, findings))


def be_learner(place: Place, digest: str, out: Path, findings: Path | None) -> int:
    """Examine the network as one learner of a launch; under another launcher learner 0 prints the findings."""
    found = examined(place, digest, out)
    if isinstance(found, HostFinding):
        return tell([found], None)
    if place.rank > 0:
        return int(any(each.level == "bad" for each in found))
    if place.store != "murmur":
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
    write_whole(path, json.dumps([asdict(each) for each in found], indent=1).encode())
