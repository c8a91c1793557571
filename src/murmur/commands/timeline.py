"""`murmur timeline`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from murmur.commands.options import Chosen, Spread, grouped
from murmur.core.errors import SettingError
from murmur.core.learner import Strategy
from murmur.core.path_checks import file_to_write, not_an_input
from murmur.core.printable import say
from murmur.report.page import write_text
from murmur.report.swim_lanes import stand_alone
from murmur.report.timeline import run_timeline
from murmur.run.configuration import resolved, strategy_of
from murmur.simulation.planner.table import shown
from murmur.simulation.scenario import Scenario
from murmur.simulation.timeline import strategy_timeline

app = typer.Typer(add_completion=False)
KIND, STEP_SECONDS, MODEL_BYTES = "ethernet-1g", 0.1, 4e6  # of a strategy: an exchange takes a third of a gradient

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN|EXPERIMENT]",
        help="Folder of a run, or its trace.json; or an experiment, whose strategy is drawn.",
    ),
]


@dataclass(frozen=True)
class Virtual:
    """The virtual cluster of a strategy; the fields are those of a scenario.

    Attributes:
        kind: One of the clusters of murmur plan; by default one of 1 Gb/s Ethernet.
        step_seconds: Seconds per gradient of one learner; 0.1 by default.
        model_bytes: Bytes of a vector on the wire; 4 MB by default.
    """

    panel: ClassVar[str] = "Virtual cluster"
    learners: Annotated[int | None, typer.Option(min=1, help="Number of learners; 4 by default.")] = None
    kind: Annotated[str | None, typer.Option("--cluster")] = None
    step_seconds: float | None = None
    model_bytes: Annotated[float | None, typer.Option(min=0.0)] = None


@dataclass(frozen=True)
class Part:
    """The drawn part, and the file.

    Attributes:
        gradients: Length of the picture of a strategy, in gradients of the fastest learner; 12 by default.
        start: Seconds at which the picture begins; by default the beginning.
        seconds: Length of the picture in seconds; of a run by default 30 gradients.
        out: SVG file to write.
    """

    panel: ClassVar[str] = "Picture"
    gradients: Annotated[int | None, typer.Option(min=1)] = None
    start: Annotated[float | None, typer.Option("--from", min=0.0)] = None
    seconds: Annotated[float | None, typer.Option(min=1e-6)] = None
    out: Path = Path("timeline.svg")


HELP = """Draw what each learner does over time, as an SVG picture: gradients, waits, exchanges, messages.

Example: murmur timeline --strategy 'KAVG(K=4)' --strategy 'ADPSGD()' --straggler 0=3x --gradients 16 --out both.svg

The strategies run on a virtual cluster without gradients, one picture below the other. A strategy of your own:
murmur timeline my_experiment.py --learners 4

A stretch of a real or simulated run, from its trace.json: murmur timeline RUN --from 120 --seconds 5
"""


@app.command("timeline", help=HELP)
@grouped
def timeline_command(
    source: Source = None, *, chosen: Chosen = (), cluster: Virtual, spread: Spread, part: Part
) -> None:
    file_to_write(part.out, "--out")
    trace = None if source is None else trace_of(Path(source))
    if trace is not None:
        given = [*chosen, *spread.stragglers, spread.jitter or None, part.gradients]
        if any(value is not None for value in [*given, *(getattr(cluster, f.name) for f in fields(cluster))]):
            raise SettingError(f"{source} is a run: it takes --from, --seconds and --out alone")
        if not trace.is_file():
            raise SettingError(f"there is no trace {trace}: name a folder of murmur train or simulate")
        not_an_input(part.out, "--out", [trace])
        svg, told = run_timeline(trace, trace.absolute().parent.name, part.start, part.seconds)
        say(told)
    else:
        svg = strategy_timeline(
            strategies_of(source, chosen),
            scenario_of(cluster, spread).cluster_of_loops(),
            part.gradients or 12,
            part.start or 0.0,
            part.seconds,
        )
    write_text(part.out, stand_alone(svg))
    say(f"{part.out}")


def trace_of(path: Path) -> Path | None:
    """Return the trace of a run folder; None if the path names an experiment."""
    return path / "trace.json" if path.is_dir() else path if path.suffix == ".json" else None


def strategies_of(source: str | None, chosen: Sequence[str]) -> dict[str, Strategy]:
    """Return the strategies to draw, chosen by texts or by an experiment, with their names."""
    if chosen:
        return {text: strategy_of(text) for text in chosen}
    if source is None:
        raise SettingError("nothing to draw: name a run, an experiment, or a --strategy such as 'ADPSGD()'")
    strategy = resolved(source, ()).strategy
    return {shown(strategy): strategy}


def scenario_of(cluster: Virtual, spread: Spread) -> Scenario:
    return Scenario(
        learners=cluster.learners or 4,
        kind=cluster.kind or KIND,
        step_seconds=cluster.step_seconds or STEP_SECONDS,
        model_bytes=MODEL_BYTES if cluster.model_bytes is None else cluster.model_bytes,
        **vars(spread),
    )
