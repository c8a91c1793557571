"""`murmur plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from murmur.commands.cluster_options import KINDS, Chosen, Jitter, ModelBytes, Step, Stragglers
from murmur.commands.options import Settings
from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.core.flat import Layout
from murmur.core.learner import Strategy
from murmur.core.path_checks import file_to_write
from murmur.engine.experiment import Experiment
from murmur.engine.published import Published
from murmur.engine.scaling import described
from murmur.engine.seeds import seed_of, seed_torch
from murmur.recipes.toy import ToyTask
from murmur.report.terminal_table import TerminalTable
from murmur.run.configuration import configure, resolved
from murmur.run.dry_run import first_steps, turn_lines
from murmur.run.timed import timed
from murmur.simulation.parse import compute_times, kind_of
from murmur.simulation.planner.figure import draw_scaling
from murmur.simulation.planner.measure import measure_machine
from murmur.simulation.planner.site import Site, own_site, preset_site
from murmur.simulation.planner.table import PlanRow, ranked, scaled, shown
from murmur.simulation.planner.work import FRAMES_PER_SECOND, Work, step_seconds
from murmur.simulation.published import Prediction, compared
from murmur.simulation.scenario import Scenario
from murmur.strategies import SyncSGD
from murmur.worlds.virtual.cluster import Link
from murmur.worlds.virtual.presets import Preset

app = typer.Typer(add_completion=False)
USUAL = ("SyncSGD", "KAVG(K=8)", "BMUF(K=8)", "DelayByOne", "ADPSGD", "ASGD")

UTILISATION = 0.3
KIND, LEARNERS = "v100-ethernet", 16  # if neither the command line nor the experiment sets them

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="[EXPERIMENT]",
        help="Experiment: it is planned on its own cluster; without one its steps are timed on this machine.",
    ),
]
Measure = Annotated[
    bool, typer.Option("--measure", help="Time steps of EXPERIMENT, sums and the loopback on this machine.")
]
Learners = Annotated[
    int | None, typer.Option(min=1, help=f"Number of learners; by default the experiment's, or {LEARNERS}.")
]
Kind = Annotated[
    str | None, typer.Option("--cluster", help=f"{KINDS} By default the experiment's own cluster, or {KIND}.")
]
Flops = Annotated[
    float | None,
    typer.Option("--flops-per-frame", help="Floating-point operations of a gradient, in place of --step-seconds."),
]
Utilisation = Annotated[
    float | None,
    typer.Option(
        help=f"Share of the device's peak that a gradient reaches, with --flops-per-frame; {UTILISATION} by default."
    ),
]
Hours = Annotated[float | None, typer.Option(help="Hours of audio in an epoch.")]
Frames = Annotated[float | None, typer.Option("--frames-per-minibatch", help="Frames in a minibatch of one learner.")]
Price = Annotated[float, typer.Option(min=0.0, help="Price of a device hour, for the column of costs.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show each formula with its numbers.")]
Plot = Annotated[Path | None, typer.Option(help="Write a picture of the speed-up at 1 to 1024 learners to this file.")]
Given = dict[str, float | None]
NEEDS = {
    "model_bytes": "--model-bytes (of the weights, such as 165e6)",
    "corpus_hours": "--corpus-hours (audio of an epoch)",
    "frames_per_minibatch": "--frames-per-minibatch (of one learner)",
    "step_seconds": "--step-seconds (of a gradient) or --flops-per-frame",
}


HELP = """Estimate hours per epoch, speed-up, bottleneck, memory and cost of strategies on a cluster before buying it.

Example: murmur plan --step-seconds 0.07 --model-bytes 165e6 --corpus-hours 1975 --frames-per-minibatch 2688
--learners 64 --cluster v100-ethernet --jitter 0.1 --price 2.5 --explain

From an experiment, timed on this machine: murmur plan toy --measure --cluster ethernet-1g --learners 8

--step-seconds, --flops-per-frame and numbers of the work take precedence over what is measured. The seconds are those
of a whole minibatch of the experiment, which its scaling may cut among the learners, or of --frames-per-minibatch.

An experiment that has a cluster, such as those of papers, is not timed; its strategy is planned beside the usual ones,
and the whole training is compared with published figures: murmur plan cui2021
"""


@app.command(help=HELP)
def plan(
    source: Source = None,
    settings: Settings = None,
    measure: Measure = False,
    chosen: Chosen = None,
    learners: Learners = None,
    kind: Kind = None,
    step: Step = None,
    flops: Flops = None,
    utilisation: Utilisation = None,
    model_bytes: ModelBytes = None,
    corpus_hours: Hours = None,
    frames: Frames = None,
    jitter: Jitter = 0.0,
    straggler: Stragglers = None,
    price: Price = 0.0,
    explain: Explain = False,
    plot: Plot = None,
) -> None:
    """Plan; see HELP."""
    hardware = hardware_of(kind or KIND, plot)
    scenario = Scenario(learners, kind, None, step, None, jitter, tuple(straggler or ()), model_bytes=model_bytes)
    given: Given = {"model_bytes": model_bytes, "corpus_hours": corpus_hours, "frames_per_minibatch": frames}
    gradient = gradient_of(flops, utilisation, step)
    experiment = experiment_of(source, settings or ())
    strategies = [strategy_of(text) for text in chosen or ()]
    if experiment is not None and on_own_cluster(experiment, measure, scenario, gradient):
        site = own_site(experiment, scenario, given)
        strategies = strategies or [experiment.strategy]
        wanted = strategies if chosen else beside_usual(experiment.strategy)
    else:
        site = described_site(experiment, measure, scenario, given, hardware, gradient)
        wanted = strategies or [strategy_of(text) for text in USUAL]
    present(site, wanted, View(price, explain, plot))
    if experiment is not None and experiment.published is not None:
        show_published(experiment.published, site, strategies)


@dataclass(frozen=True)
class Gradient:
    """Operations of a gradient per frame (None: its seconds are known), and the share of a device's peak speed."""

    flops_per_frame: float | None
    utilisation: float


@dataclass(frozen=True)
class View:
    """Parts of the output: price of a device hour, formulas, picture."""

    price: float
    explain: bool
    plot: Path | None


def gradient_of(flops: float | None, utilisation: float | None, step: float | None) -> Gradient:
    """Return the operations of a gradient.

    Raises:
        SettingError: the seconds of a gradient are set twice, or a utilisation has no operations.
    """
    if flops is None and utilisation is not None:
        raise SettingError("--utilisation changes nothing without --flops-per-frame: give both, or leave it out")
    if flops is not None and step is not None:
        raise SettingError(
            "--step-seconds and --flops-per-frame both set the time of a gradient: leave out one of them"
        )
    return Gradient(flops, UTILISATION if utilisation is None else utilisation)


def experiment_of(source: str | None, settings: Sequence[str]) -> Experiment | None:
    """Return the experiment of that name with its settings; None without a name.

    Raises:
        SettingError: a name or value does not fit, or there are settings of no experiment.
    """
    if source is not None:
        return resolved(source, settings)
    if settings:
        raise SettingError(f"--set {settings[0]} changes nothing without an experiment: name one, or leave it out")
    return None


def on_own_cluster(experiment: Experiment, measure: bool, scenario: Scenario, gradient: Gradient) -> bool:
    """True if the experiment has a cluster and the seconds of a gradient on the machines of the scenario are known.

    Raises:
        SettingError: another time of a gradient is asked for, but no other machines.
    """
    if experiment.cluster is None:
        return False
    asked = "--measure" if measure else None if gradient.flops_per_frame is None else "--flops-per-frame"
    if asked is not None and scenario.kind is None:
        raise SettingError(
            f"{asked}: the experiment's own cluster says how long a gradient takes: name a --cluster too, or give"
            " --step-seconds in place of it"
        )
    return asked is None and not scenario.unknown_step(experiment)


def beside_usual(strategy: Strategy) -> list[Strategy]:
    """Return a strategy and the usual ones."""
    return [strategy, *(usual for usual in map(strategy_of, USUAL) if usual != strategy)]


def described_site(
    experiment: Experiment | None, measure: bool, scenario: Scenario, given: Given, hardware: Preset, gradient: Gradient
) -> Site:
    """Return a site of numbers, which are measured on this machine as far as an experiment is given.

    Raises:
        SettingError: numbers are missing, or there is no experiment to measure.
    """
    step, learners = scenario.step_seconds, scenario.learners or LEARNERS
    if experiment is not None:
        pieces = experiment.scaled(learners).cut if given["frames_per_minibatch"] is None else 1
        given, found, hardware = measured(experiment, given, hardware, learners)
        if gradient.flops_per_frame is None:
            step = found if step is None else step / pieces
    elif measure:
        raise SettingError("--measure needs an experiment: murmur plan FILE --measure")
    known = all_given({**given, "step_seconds": gradient.flops_per_frame if step is None else step})
    seconds, work = known.pop("step_seconds"), Work(**known)
    if step is None:
        seconds = step_seconds(seconds, work.frames_per_minibatch, hardware.device_flops, gradient.utilisation)
    if experiment is not None and (scenario.step_seconds is not None or gradient.flops_per_frame is not None):
        typer.echo(f"in place of the measured step: {seconds:.6f} s, as given")
    compute = compute_times(seconds, scenario.jitter, scenario.stragglers, learners)
    return preset_site(hardware, learners, compute, work, scenario.kind or KIND, experiment)


def present(site: Site, wanted: Sequence[Strategy], view: View) -> None:
    """Show the table of the strategies, and on request formulas and picture."""
    rows = ranked(wanted, site.cluster_of(site.learners), site.work, view.price)
    show(rows, f"one epoch on {counted(site.learners, 'learner')}, {site.name}", view.explain)
    if view.plot is not None:
        draw(view.plot, wanted, site)


def show_published(published: Published, site: Site, strategies: Sequence[Strategy]) -> None:
    """Show the predictions for the whole training beside the published figures."""
    rows = ranked(strategies, site.cluster_of(site.learners), site.work)
    typer.echo(f"the whole training, {site.epochs:g} epoch{'' if site.epochs == 1 else 's'}, at this pace:")
    for line in compared(
        published, [Prediction(r.strategy, r.learners, r.hours * site.epochs, r.speed_up) for r in rows]
    ):
        typer.echo(line)


def hardware_of(kind: str, plot: Path | None) -> Preset:
    """Return the machines of a name, after checking that the picture can be written.

    Raises:
        SettingError: the name is unknown, or the picture's file cannot be written.
    """
    if plot is not None:
        file_to_write(plot, "--plot")
    return kind_of(kind)


def all_given(given: Given) -> dict[str, float]:
    """Return the numbers that a plan needs.

    Raises:
        SettingError: some are missing; the message names all of them.
    """
    missing = [NEEDS[name] for name, value in given.items() if value is None and name in NEEDS]
    if missing:
        raise SettingError(
            f"plan needs {', '.join(missing)}; or time an experiment on this machine: murmur plan EXPERIMENT --measure"
        )
    return {name: value for name, value in given.items() if value is not None}


def strategy_of(text: str) -> Strategy:
    """Return the strategy that a text such as KAVG(K=8) names."""
    return configure(Experiment(ToyTask(), SyncSGD()), strategy=text).strategy


def measured(experiment: Experiment, given: Given, hardware: Preset, learners: int) -> tuple[Given, float, Preset]:
    """Measure an experiment's first steps and this machine's sums; numbers of the work given by hand take precedence.

    The network link is the preset's, but no faster than this host's loopback.
    """
    with timed("first steps, sums and the loopback"):
        experiment.task.prepare()
        seed_torch(seed_of(experiment.seed, "model"), "cpu")
        model = experiment.task.model()
        first, machine = first_steps(experiment, model, "cpu"), measure_machine()
    layout, run = Layout.trainable(model), experiment.scaled(learners)
    seconds, frames = first.step_seconds / run.cut, experiment.task.samples_per_epoch / run.per_epoch
    typer.echo(f"scaling with {counted(learners, 'learner')}: {described(run.rule, learners, experiment.optimizer)}")
    for line in turn_lines(run, learners):
        typer.echo(line)
    found: Given = {
        "model_bytes": float(layout.numel * layout.empty().element_size()),
        "corpus_hours": experiment.task.samples_per_epoch / FRAMES_PER_SECOND / 3600,
        "frames_per_minibatch": frames,
        "optimizer_bytes": float(first.optimizer_bytes),
    }
    typer.echo(
        f"measured: {seconds:.6f} s a step, sums {machine.reduce_bytes_per_second / 1e9:.2f} GB/s, loopback "
        f"{machine.link_bytes_per_second / 1e9:.2f} GB/s and {machine.latency_seconds * 1e6:.0f} us"
    )
    link = Link(
        max(hardware.link.latency_seconds, machine.latency_seconds),
        min(hardware.link.bytes_per_second, machine.link_bytes_per_second),
    )
    slower = replace(hardware, link=link, reduce_bytes_per_second=machine.reduce_bytes_per_second)
    asked = given["frames_per_minibatch"] or frames  # the measured seconds are those of the experiment's own frames
    if asked != frames:
        seconds *= asked / frames
        typer.echo(f"in proportion to --frames-per-minibatch {asked:g}: {seconds:.6f} s a step")
    return {**found, **{k: v for k, v in given.items() if v is not None}}, seconds, slower


def show(rows: Sequence[PlanRow], title: str, explain: bool) -> None:
    """Print the ranked table, and on request each formula."""
    heads = ("strategy", "hours", "speed-up", "efficiency", "train", "binds", "rounds", "memory, MB", "cost")
    table = TerminalTable(heads, title)
    for row in rows:
        rounds = "" if row.form.rounds is None else f"{row.form.rounds:.2f}"
        numbers = (f"{row.hours:.4g}", f"{row.speed_up:.2f}", f"{row.efficiency:.0%}", str(row.training))
        table.add_row(
            row.strategy, *numbers, row.form.binds, rounds, f"{row.memory_bytes / 1e6:.1f}", f"{row.cost:.2f}"
        )
    console = Console()
    console.print(table)
    console.print("memory: vectors and optimizer of a learner, no activations; rounds: averaging rounds a gradient")
    console.print("train: learners that take gradients; speed-up, efficiency and cost count those that only serve too")
    if explain:
        for row in rows:
            console.print(
                "\n".join([row.strategy, *(f"  {line}" for line in row.form.lines)]), markup=False, soft_wrap=True
            )


def draw(path: Path, wanted: Sequence[Strategy], site: Site) -> None:
    """Draw the speed-up over the number of learners."""
    with timed("speed-up at 1 to 1024 learners"):
        curves: Mapping[str, Sequence[PlanRow]] = {
            shown(strategy): scaled(strategy, site.cluster_of, site.work_of) for strategy in wanted
        }
        draw_scaling(curves, path, "speed-up of an epoch")
    typer.echo(f"{path}")
