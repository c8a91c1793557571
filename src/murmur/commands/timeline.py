"""`murmur timeline`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from murmur.commands.options import Chosen, Spread, grouped
from murmur.core.errors import SettingError
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

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN|EXPERIMENT]",
        help="Folder of a run, or its trace.json; or an experiment, whose strategy is drawn.",
    ),
]


@dataclass(frozen=True)
class ClusterOptions:
    """The virtual cluster of a strategy; the fields are those of a scenario. A vector takes a third of a gradient.

    Attributes:
        learners: Number of learners.
        kind: One of the clusters of murmur plan.
        step_seconds: Seconds per gradient of one learner.
        model_bytes: Bytes of a vector on the wire.
    """

    panel: ClassVar[str] = "Virtual cluster"
    learners: Annotated[int, typer.Option(min=1)] = 4
    kind: Annotated[str, typer.Option("--cluster")] = "ethernet-1g"
    step_seconds: float = 0.1
    model_bytes: float = 4e6


@dataclass(frozen=True)
class Part:
    """The drawn part, and the file.

    Attributes:
        gradients: Length of the picture of a strategy, in gradients of the fastest learner.
        start: Seconds at which the picture begins; by default at the first span.
        seconds: Length of the picture in seconds; of a run by default 30 gradients.
        out: SVG file to write.
    """

    panel: ClassVar[str] = "Picture"
    gradients: Annotated[int, typer.Option(min=1)] = 12
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
    source: Source = None, *, chosen: Chosen = (), cluster: ClusterOptions, spread: Spread, part: Part
) -> None:
    file_to_write(part.out, "--out")
    path = Path(source or "")
    if source is not None and (path.is_dir() or path.suffix == ".json"):
        if chosen or (cluster, spread, part.gradients) != (ClusterOptions(), Spread(), Part.gradients):
            raise SettingError(f"{source} is a run: it takes --from, --seconds and --out alone")
        trace = path / "trace.json" if path.is_dir() else path
        if not trace.is_file():
            raise SettingError(f"there is no trace {trace}: name a folder of murmur train or simulate")
        not_an_input(part.out, "--out", [trace])
        svg, told = run_timeline(trace, trace.absolute().parent.name, part.start, part.seconds)
        say(told)
    else:
        strategies = {text: strategy_of(text) for text in chosen}
        if source is not None and not chosen:
            own = resolved(source, ()).strategy
            strategies = {shown(own): own}
        if not strategies:
            raise SettingError("nothing to draw: name a run, an experiment, or a --strategy such as 'ADPSGD()'")
        machines = Scenario(**vars(cluster), **vars(spread)).cluster_of_loops()
        svg = strategy_timeline(strategies, machines, part.gradients, part.start or 0.0, part.seconds)
    write_text(part.out, stand_alone(svg))
    say(f"{part.out}")
