"""`murmur plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from murmur.commands.options import Chosen, Kind, Settings, Spread, Step, grouped, numbers
from murmur.core.errors import SettingError
from murmur.core.path_checks import file_to_write
from murmur.run.configuration import resolved
from murmur.simulation.plan import USUAL_LEARNERS, UTILISATION, PlanRequest, show_plan
from murmur.simulation.scenario import Scenario

app = typer.Typer(add_completion=False)

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="[EXPERIMENT]",
        help="Experiment: it is planned on its own cluster; without one its steps are timed on this machine.",
    ),
]


@dataclass(frozen=True)
class Machines:
    """The machines, and the strategies on them.

    Attributes:
        measure: Time steps of EXPERIMENT, sums and the loopback on this machine.
        bandwidth: Gb/s of a node's network, in place of the cluster's.
        latency: Microseconds of a message on the network, in place of the cluster's.
    """

    measure: bool = False
    strategies: Chosen = ()
    learners: Annotated[
        str,
        typer.Option(
            show_default=False,
            help=f"Number of learners, or several for one table, such as 16,32,64; by default the experiment's, or"
            f" {USUAL_LEARNERS}.",
        ),
    ] = ""
    kind: Kind = None
    bandwidth: Annotated[float | None, typer.Option(min=1e-3)] = None
    latency: Annotated[float | None, typer.Option(min=0.0)] = None


@dataclass(frozen=True)
class Time:
    """The time of a gradient.

    Attributes:
        flops_per_frame: Floating-point operations of a gradient, in place of --step-seconds.
    """

    step_seconds: Step = None
    flops_per_frame: float | None = None
    utilisation: Annotated[
        float | None,
        typer.Option(
            help=f"Share of the device's peak that a gradient reaches, with --flops-per-frame; {UTILISATION} by"
            " default."
        ),
    ] = None


@dataclass(frozen=True)
class WorkOptions:
    """An epoch; the fields are those of the planner's work.

    Attributes:
        model_bytes: Size of the weights in bytes.
        corpus_hours: Hours of audio in an epoch.
        frames_per_minibatch: Frames in a minibatch of one learner.
    """

    model_bytes: float | None = None
    corpus_hours: float | None = None
    frames_per_minibatch: float | None = None


@dataclass(frozen=True)
class View:
    """Parts of the output.

    Attributes:
        price: Price of a device hour, for the column of costs.
        explain: Show each formula with its numbers.
        plot: Write a picture of the speed-up at 1 to 1024 learners to this file.
    """

    price: Annotated[float, typer.Option(min=0.0)] = 0.0
    explain: bool = False
    plot: Path | None = None


HELP = """Estimate hours per epoch, speed-up, bottleneck, memory and cost of strategies on a cluster before buying it.

Example: murmur plan --step-seconds 0.07 --model-bytes 165e6 --corpus-hours 1975 --frames-per-minibatch 2688
--learners 64 --cluster v100-ethernet --jitter 0.1 --price 2.5 --explain

From an experiment, timed on this machine: murmur plan toy --measure --cluster ethernet-1g --learners 8

--step-seconds, --flops-per-frame and numbers of the work take precedence over what is measured. The seconds are those
of a whole minibatch of the experiment, which its scaling may cut among the learners, or of --frames-per-minibatch.

An experiment that has a cluster, such as those of papers, is not timed; its strategy is planned beside the usual ones,
and the whole training is compared with published figures: murmur plan cui2021
"""


@app.command("plan", help=HELP)
@grouped
def plan_command(
    source: Source = None,
    *,
    settings: Settings = (),
    machines: Machines,
    time: Time,
    work: WorkOptions,
    spread: Spread,
    view: View,
) -> None:
    if view.plot is not None:
        file_to_write(view.plot, "--plot")
    if source is None and settings:
        raise SettingError(f"--set {settings[0]} changes nothing without an experiment: name one, or leave it out")
    experiment = None if source is None else resolved(source, settings)
    scenario = Scenario(
        kind=machines.kind,
        step_seconds=time.step_seconds,
        model_bytes=work.model_bytes,
        gbit_per_second=machines.bandwidth,
        latency_us=machines.latency,
        **vars(spread),
    )
    request = PlanRequest(experiment, machines.measure, scenario, vars(work), time.flops_per_frame, time.utilisation)
    show_plan(request, machines.strategies, numbers(machines.learners, "--learners"), **vars(view))
