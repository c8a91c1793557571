"""Simulated runs: the trainer in the virtual world, or the protocols alone; one after another or in parallel."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TextIO

import torch

from murmur.core.errors import IncompleteRun, SettingError
from murmur.core.facts import Facts
from murmur.core.flat import Layout
from murmur.core.group import PeerLost
from murmur.core.plain_files import making_sense
from murmur.core.whole_files import FinishedLines, write_whole
from murmur.core.world import Seat
from murmur.engine.checkpoints.checkpoint import Checkpoints
from murmur.engine.experiment import Experiment
from murmur.engine.record import Record, began, duration, read_line, steps_in
from murmur.engine.stacked import NotStackable, check_stackable, draw_together
from murmur.engine.trainer import Trainer
from murmur.execution.processes import run_in_workers
from murmur.run.folder.contents import OpenedRun, opened
from murmur.run.learner import report
from murmur.run.request import RunRequest
from murmur.run.training import check_model, write_run
from murmur.simulation.account import Account, of_run, of_timing
from murmur.simulation.planner.timing import Timing, time_strategy
from murmur.simulation.scenario import Simulation, continued
from murmur.worlds.virtual.clock import Deadlock, Livelock
from murmur.worlds.virtual.cluster import Cluster
from murmur.worlds.virtual.world import VirtualWorld

SPARE_FILES = 100  # open files other than records and traces


@dataclass(frozen=True)
class Failure:
    """A simulated run that failed."""

    strategy: str
    why: str


def side_by_side(simulations: Sequence[Simulation], jobs: int) -> list[Account | Failure]:
    """Run simulations in up to `jobs` processes; in this one with `jobs=1`."""
    labelled = partial(attempt, labelled=len(simulations) > 1)
    if jobs == 1 or len(simulations) == 1:
        return [labelled(simulation) for simulation in simulations]
    found = dict(run_in_workers([partial(labelled, simulation) for simulation in simulations], jobs))
    return [found[place] for place in range(len(simulations))]


def attempt(simulation: Simulation, labelled: bool = False) -> Account | Failure:
    """Simulate; return a `Failure` if a needed learner was lost, training diverged, or learners wait for ever.

    A run in which a lost learner has left minibatches fails too.
    """
    label = simulation.out.name if labelled else ""
    try:
        return simulate(simulation, label)
    except (PeerLost, FloatingPointError, IncompleteRun) as error:
        return Failure(simulation.strategy or simulation.source, str(error))
    except (Deadlock, Livelock) as error:
        return Failure(simulation.strategy or simulation.source, f"the run cannot end: {error}")


def simulate(simulation: Simulation, label: str = "") -> Account:
    """Run one simulation and write `simulated.json` beside what the trainer leaves."""
    with opened(simulation.out, simulation.name, simulation.resume, simulation.force) as run:
        account = _simulated(replace(simulation, out=run.out), run, label)
        run.end(0)
    return account


def _simulated(simulation: Simulation, run: OpenedRun, label: str) -> Account:
    torch.set_num_threads(simulation.threads)
    began = time.monotonic()
    experiment = simulation.experiment()
    experiment.task.prepare()
    if simulation.batched:
        try:
            check_stackable(experiment)
        except NotStackable as error:
            raise SettingError(f"--batched: {error}; leave it out to compute each gradient alone") from error
    cluster = simulation.scenario.cluster(experiment)
    if simulation.timing_only:
        run.begin()
        cluster = with_message(cluster, experiment)
        timed = _timed(experiment, cluster, simulation.timed_minibatches)
        account = of_timing(timed, experiment, cluster, time.monotonic() - began)
    else:
        found = _trained(simulation, experiment, cluster, run, label)
        account = replace(found, real_seconds=time.monotonic() - began)
    write_whole(simulation.out / "simulated.json", json.dumps(account.described(), indent=1).encode())
    return account


def with_message(cluster: Cluster, experiment: Experiment) -> Cluster:
    """Return the cluster with messages as large as the experiment's model, unless it sets their size."""
    if cluster.message_bytes is not None:
        return cluster
    layout = Layout.trainable(experiment.model())
    return replace(cluster, message_bytes=float(layout.numel * layout.empty().element_size()))


def _timed(experiment: Experiment, cluster: Cluster, most: int | None) -> Timing:
    if Facts.of(experiment.strategy).follows_losses:
        name = type(experiment.strategy).__name__
        raise SettingError(f"{name} depends on losses: it cannot run with --timing-only")
    scaled = experiment.scaled(cluster.learners)
    samples = experiment.task.samples_per_epoch / scaled.per_epoch
    return time_strategy(experiment.strategy, cluster, min(scaled.total, most or scaled.total), samples)


def _trained(simulation: Simulation, experiment: Experiment, cluster: Cluster, run: OpenedRun, label: str) -> Account:
    request = RunRequest(
        source=simulation.source,
        settings=simulation.settings,
        strategy=simulation.strategy,
        learners=cluster.learners,
        out=simulation.out,
        resume=simulation.resume,
        threads=simulation.threads,
        tested=simulation.tested or "lowest",
    )
    allow_files(cluster.learners)
    check_model(request, experiment)
    run.begin()
    write_run(request, experiment, simulation.facts(cluster, experiment))
    since, done, sent = behind(simulation.out) if simulation.resume else (0.0, Counter[int](), [])
    together = draw_together if simulation.batched else None
    cluster = continued(cluster, since, done) if simulation.resume else cluster
    world = VirtualWorld(cluster, together=together, sent_bytes=sent)
    seats: list[list[Seat]] = [[] for _ in range(cluster.learners)]
    progress = VirtualProgress(experiment.scaled(cluster.learners).total, label)

    def observers(seat: Seat) -> tuple[VirtualProgress]:
        seats[seat.group.rank].append(seat)
        return (progress,)

    outcome = Trainer(experiment, world, simulation.out, observers, simulation.resume).fit()
    if simulation.tested is not None:
        report(request, experiment, outcome.model)
    return of_run(experiment, world, seats, simulation.out, since)


def behind(out: Path) -> tuple[float, Counter[int], list[float]]:
    """Virtual seconds, steps and sent bytes of each learner at the newest checkpoint of a run; 0 without one."""
    found, _ = Checkpoints(out / "checkpoints").newest(0)
    done: Counter[int] = Counter()
    if found is None:
        return 0.0, done, []
    facts = found.facts
    for record in map(read_line, FinishedLines(out / "records.jsonl")):
        if record is not None and record["kind"] == "step" and began(record) < facts["minibatches"]:
            done[int(record["learner"])] += steps_in(record)
    with making_sense(out / "checkpoints", "move the newest checkpoint away"):
        return float(facts["seconds"]), done, [float(sent) for sent in facts["counted"].get("sent_bytes", [])]


def allow_files(learners: int) -> None:
    """Raise the limit of open files to hold the records and the trace of every learner."""
    needed = 2 * learners + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and hard < needed:
        raise SettingError(f"{learners} learners need {needed} open files, the limit is {hard}: raise it (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class VirtualProgress:
    """Observer of all learners' records that writes a line every few real seconds and one for each evaluation.

    `total` is the number of minibatches, None if it is not known; `label` begins every line, to distinguish simulations
    that run side by side.
    """

    def __init__(
        self, total: int | None, label: str = "", stream: TextIO | None = None, every_seconds: float | None = None
    ) -> None:
        self._total, self._label, self._out = total, f"{label}: " if label else "", stream or sys.stderr
        self._live = self._out.isatty() and not label
        self._every = every_seconds if every_seconds is not None else 0.5 if self._live else 10.0
        self._began = time.monotonic()
        self._last = self._began - self._every
        self._first: Record | None = None

    def __call__(self, record: Record) -> None:
        if record.kind == "evaluation":
            figures = "  ".join(f"{name} {value:.4g}" for name, value in record.figures.items())
            self._write(f"epoch {record.epoch:6.2f}  held-out  {figures}  at {virtual(record.seconds)}", final=True)
            return
        self._first = self._first or record
        if time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            self._write(self._line(record, self._first), final=not self._live)

    def _line(self, r: Record, first: Record) -> str:
        real = time.monotonic() - self._began
        done = r.minibatches - first.minibatches
        pace = (r.seconds - first.seconds) / max(real, 1e-9)
        if self._total is None:
            return f"minibatch {r.minibatches:7d}  loss {r.loss:8.4f}  {virtual(r.seconds)}, real {duration(real)}"
        left = f"about {duration(real / done * (self._total - r.minibatches))} left" if done > 0 else ""
        return (
            f"minibatch {min(r.minibatches, self._total):7d}/{self._total}  epoch {r.epoch:6.2f}  loss {r.loss:8.4f}  "
            f"{virtual(r.seconds)}, real {duration(real)} ({pace:.3g} virtual s a real s)  "
            f"{left}"
        ).rstrip()

    def _write(self, text: str, final: bool) -> None:
        self._out.write(("\r\033[K" if self._live else "") + self._label + text + ("\n" if final else ""))
        self._out.flush()


def virtual(seconds: float) -> str:
    if seconds < 60:
        return f"virtual {seconds:.3g} s"
    return f"virtual {seconds / 60:.3g} min" if seconds < 3600 else f"virtual {seconds / 3600:.4g} h"
