"""`murmur simulate`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from rich.console import Console

from murmur.commands.cluster_options import KINDS, Chosen, Jitter, Step, Stragglers
from murmur.commands.options import Settings, Source
from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.core.facts import training_learners
from murmur.core.path_checks import folder_to_write
from murmur.core.printable import say
from murmur.engine.experiment import describe, in_short
from murmur.engine.published import Published
from murmur.engine.scaling import described
from murmur.engine.seeds import seed_of, seed_torch
from murmur.execution.cores import cores_here
from murmur.report.page import check_installed
from murmur.report.read import ReportError
from murmur.run.dry_run import first_steps
from murmur.run.folder.contents import refuse_work
from murmur.run.folder.lock import LOCK, locked
from murmur.run.folder.opened import LATEST, WAYS, chosen_folder
from murmur.run.task_checks import task_to_do, tested_model
from murmur.run.timed import timed
from murmur.simulation.account import Account
from murmur.simulation.picture import draw_accounts
from murmur.simulation.published import Prediction, compared
from murmur.simulation.run import Failure, side_by_side
from murmur.simulation.scenario import KIND, LEARNERS, Scenario, Simulation
from murmur.simulation.tables import cards_table, evaluations_table, learners_table, speed_table, traffic_table
from murmur.worlds.process.launch.environment import threads_per_learner

app = typer.Typer(add_completion=False)
CLUSTER, FAULTS, HOW = "Cluster", "Faults", "Execution"

Learners = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=f"Number of learners; by default the experiment's, or {LEARNERS}.",
        rich_help_panel=CLUSTER,
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help=f"{KINDS} By default the experiment's own cluster, or {KIND}.",
        rich_help_panel=CLUSTER,
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(min=1, help="Number of nodes; by default as many as the learners need.", rich_help_panel=CLUSTER),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        help="Folder of a real run; replay the compute times of its learners, scaled to this run's pieces.",
        rich_help_panel=CLUSTER,
    ),
]
ModelBytes = Annotated[
    float | None,
    typer.Option(help="Bytes of a vector on the wire, in place of the model's own size.", rich_help_panel=CLUSTER),
]
Kills = Annotated[
    list[str] | None,
    typer.Option("--kill", help="5@30s: learner 5 is killed after 30 s; repeatable.", rich_help_panel=FAULTS),
]
Stops = Annotated[
    list[str] | None,
    typer.Option(
        "--stop", help="3@10s+20s: learner 3 is suspended after 10 s for 20 s; repeatable.", rich_help_panel=FAULTS
    ),
]
Rejoins = Annotated[
    list[str] | None,
    typer.Option(
        "--rejoin", help="5@60s: the killed learner 5 starts again after 60 s; repeatable.", rich_help_panel=FAULTS
    ),
]
Lease = Annotated[
    float | None,
    typer.Option("--lease-seconds", help="A learner silent for this long counts as lost.", rich_help_panel=FAULTS),
]
TimingOnly = Annotated[
    bool,
    typer.Option("--timing-only", help="Compute no gradients and no loss; for many learners.", rich_help_panel=HOW),
]
TimedMinibatches = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="With --timing-only: time this many minibatches of all learners; the hours of the budget follow from their"
        " pace. By default the whole budget.",
        rich_help_panel=HOW,
    ),
]
Batched = Annotated[
    bool,
    typer.Option(
        "--batched",
        help="Compute the gradients of many learners in one call, if the task supports it.",
        rich_help_panel=HOW,
    ),
]
Jobs = Annotated[int, typer.Option(min=1, help="Strategies simulated at the same time.", rich_help_panel=HOW)]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Compute threads per job; an equal share of the cores by default.", rich_help_panel=HOW),
]
Out = Annotated[
    Path,
    typer.Option(
        help="Folder for records, trace, models and pictures; with several strategies, one folder below it for each."
        " By default a new folder runs/DATE-NAME, with the link runs/latest to it.",
        rich_help_panel=HOW,
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace the runs in --out; other files there stay.", rich_help_panel=HOW),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue from the newest checkpoint in --out.", rich_help_panel=HOW)
]
Tested = Annotated[
    Literal["lowest", "last", "best", "averaged", "none"],
    typer.Option(
        "--weights", help="Model that is tested at the end, as in murmur train; none: no test.", rich_help_panel=HOW
    ),
]
HELP = """Train an experiment on a simulated cluster: real gradients, modelled seconds and bytes, bitwise repeatable.

Example: murmur simulate ctc --learners 16 --cluster v100-ethernet --straggler 0=10x
--strategy 'KAVG(K=8)' --strategy 'ADPSGD(mixing=randomized_ring)' --jobs 2 --out runs/sixteen

The seconds of a gradient come from --step-seconds, from --trace RUN of a real run, or from the experiment's own
cluster; otherwise they are measured on this machine. A simulation takes as long as the gradients of all learners one
after another; --timing-only skips them.

A learner that is killed and restarted: murmur simulate toy --strategy ADPSGD --step-seconds 1 --lease-seconds 5
--kill 5@10s --rejoin 5@30s

The folder holds the files of murmur train, with virtual seconds, and simulated.json and simulated.png: loss against
virtual hours, staleness, consensus distance, idle learners, bytes. murmur report reads it like a real run.
"""


@app.command("simulate", help=HELP)
def simulate_command(
    source: Source,
    settings: Settings = None,
    chosen: Chosen = None,
    learners: Learners = None,
    kind: Kind = None,
    nodes: Nodes = None,
    step: Step = None,
    trace: Trace = None,
    jitter: Jitter = 0.0,
    model_bytes: ModelBytes = None,
    straggler: Stragglers = None,
    kill: Kills = None,
    stop: Stops = None,
    rejoin: Rejoins = None,
    lease: Lease = None,
    timing_only: TimingOnly = False,
    timed_minibatches: TimedMinibatches = None,
    batched: Batched = False,
    jobs: Jobs = 1,
    threads: Threads = None,
    out: Out = LATEST,
    resume: Resume = False,
    force: Force = False,
    tested: Tested = "lowest",
) -> None:
    """Train on a simulated cluster; see HELP."""
    slow, kills, stops, rejoins = (tuple(given or ()) for given in (straggler, kill, stop, rejoin))
    scenario = Scenario(learners, kind, nodes, step, trace, jitter, slow, kills, stops, rejoins, lease, model_bytes)
    cores = threads or threads_per_learner(cores_here(), jobs)
    what = None if tested == "none" else tested
    words = tuple(settings or ())
    one = Simulation(source, words, None, scenario, out, resume, cores, what, timing_only, batched, force)
    raise typer.Exit(compare(replace(one, timed_minibatches=timed_minibatches), chosen or [None], jobs))


def compare(one: Simulation, strategies: Sequence[str | None], jobs: int) -> int:
    """Simulate an experiment with each of the strategies, and show the results side by side.

    Returns:
        The exit status: 1 if a simulation failed.
    """
    outs = folders(one.out, strategies)
    if not one.resume and not one.force:
        for out in outs if one.out != LATEST else ():
            refuse_work(out, WAYS)
    simulations = ready([replace(one, strategy=strategy) for strategy in strategies])
    root = chosen_folder(one.out, one.name, one.resume)
    places = zip(simulations, folders(root, strategies), strict=True)
    with locked(root / LOCK) if len(strategies) > 1 else nullcontext():  # each run's folder has its own lock
        found = side_by_side([replace(each, out=out) for each, out in places], jobs)
        accounts = [account for account in found if isinstance(account, Account)]
        show(accounts, root)
        show_budget(accounts, simulations[0].experiment().published)
    failures = [failure for failure in found if isinstance(failure, Failure)]
    for failure in failures:
        say(f"murmur: {failure.strategy}: {failure.why}", err=True)
    return 1 if failures else 0


def folders(out: Path, strategies: Sequence[str | None]) -> list[Path]:
    """Return the folder of each strategy's run: `out` itself, or folders in it named after the strategies.

    Raises:
        SettingError: two folders would have the same name.
    """
    if len(strategies) == 1:
        return [out]
    names = [re.sub(r"[^\w.]+", "-", str(strategy)).strip("-") for strategy in strategies]
    for name, strategy in zip(names, strategies, strict=True):
        if names.count(name) > 1:
            raise SettingError(f"--strategy {strategy!r} is named twice")
    return [out / name for name in names]


def ready(simulations: Sequence[Simulation]) -> list[Simulation]:
    """Check all simulations before any is run, prepare the data, and measure a step if its time is unknown."""
    experiments = [simulation.experiment() for simulation in simulations]
    first, experiment, strategies = simulations[0], experiments[0], [each.strategy for each in experiments]
    for place, simulation in enumerate(simulations):
        if (before := strategies.index(strategies[place])) < place:
            same = f"--strategy {simulation.strategy!r} and {simulations[before].strategy!r} are the same"
            raise SettingError(f"{same}: name it once")
    assumed = 1.0 if first.scenario.unknown_step(experiment) else first.scenario.step_seconds
    lines = []
    for simulation, own in zip(simulations, experiments, strict=True):
        learners = replace(simulation.scenario, step_seconds=assumed).cluster(own).learners
        told = described(own.scaled(learners).rule, training_learners(own.strategy, learners), own.optimizer)
        lines.append(f"scaling of {in_short(describe(own.strategy))} with {counted(learners, 'learner')}: {told}")
    folder_to_write(first.out, "--out")
    tested_model(experiment, first.tested)
    task_to_do(experiment.task)
    say("\n".join(lines))
    experiment.task.prepare()
    if not first.scenario.unknown_step(experiment):
        return list(simulations)
    torch.set_num_threads(first.threads)
    with timed("a step of one learner, on this machine"):
        seed_torch(seed_of(experiment.seed, "model"), "cpu")
        seconds = first_steps(experiment, experiment.task.model(), "cpu").step_seconds
    say(f"a gradient takes {seconds:.6f} s on this machine; --step-seconds or --trace gives another's")
    return [replace(s, scenario=replace(s.scenario, step_seconds=seconds)) for s in simulations]


def show_budget(accounts: Sequence[Account], published: Published | None) -> None:
    """Show the hours of the whole budget where a part of it was done, beside published figures if there are any."""
    for account in accounts:
        if account.budget_minibatches not in (None, account.minibatches):
            part = f"{account.minibatches} of {account.budget_minibatches} minibatches were done"
            say(f"{account.strategy}: {part}; the whole budget takes {account.budget_hours:.4g} h at their pace")
    predictions = [Prediction(a.strategy, a.learners, a.budget_hours, a.speed_up) for a in accounts]
    for line in compared(published, predictions) if published is not None and accounts else ():
        say(line)


def show(accounts: Sequence[Account], out: Path) -> None:
    """Show tables on the terminal and write the picture to the folder."""
    if not accounts:
        return
    console = Console()
    for account in accounts:
        if account.marks:
            console.print(evaluations_table(account))
    if len(accounts) == 1:
        console.print(learners_table(accounts[0]))
        console.print(cards_table(accounts[0]))
    title = f"simulated: {counted(accounts[0].learners, 'learner')}"
    console.print(speed_table(accounts, title))
    console.print(traffic_table(accounts, title))
    real = sum(account.real_seconds for account in accounts)
    console.print(f"{real:.1f} real seconds of simulation; all hours are virtual", highlight=False)
    try:
        check_installed()
    except ReportError:
        console.print("no picture: pip install 'murmur[viz]'")
        return
    named: Mapping[str, Account] = {account.strategy: account for account in accounts}
    draw_accounts(named, out / "simulated.png", f"{title}, virtual time")
    console.print(f"{out / 'simulated.png'}", highlight=False, soft_wrap=True)
