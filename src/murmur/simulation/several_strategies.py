"""Simulations of an experiment with several strategies: checks, runs, and the results side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.core.facts import training_learners
from murmur.core.path_checks import folder_to_write
from murmur.core.printable import say
from murmur.engine.experiment import Published, describe, in_short
from murmur.engine.scaling import described
from murmur.report.page import check_installed
from murmur.report.read import ReportError
from murmur.run.dry_run import measured_steps
from murmur.run.folder.contents import LATEST, WAYS, chosen_folder, refuse_work
from murmur.run.folder.lock import LOCK, locked
from murmur.run.preparation import task_to_do
from murmur.run.saved_model import tested_model
from murmur.simulation.account import Account
from murmur.simulation.planner.table import Prediction, compared
from murmur.simulation.results import (
    cards_table,
    draw_accounts,
    evaluations_table,
    learners_table,
    speed_table,
    traffic_table,
)
from murmur.simulation.run import Failure, side_by_side
from murmur.simulation.scenario import Simulation


def simulate_each(one: Simulation, strategies: Sequence[str | None], jobs: int) -> int:
    """Simulate an experiment with each of the strategies, and show the results side by side."""
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
    """Return the folder of each strategy's run: `out` itself, or folders in it named after the strategies."""
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
    seconds = measured_steps(experiment).step_seconds
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
        console.print("no picture: pip install 'murmur-asr[viz]'")
        return
    draw_accounts({account.strategy: account for account in accounts}, out / "simulated.png", f"{title}, virtual time")
    console.print(f"{out / 'simulated.png'}", highlight=False, soft_wrap=True)
