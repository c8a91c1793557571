"""Results of a simulated run: seconds, computing and waiting, staleness, bytes, bottleneck, evaluation points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from murmur.core.world import Seat
from murmur.engine.experiment import Experiment
from murmur.report.read import read_run
from murmur.report.records import EvaluationRow
from murmur.simulation.planner.setting import COMPUTE, NETWORK, STRAGGLER, slowness_of
from murmur.simulation.planner.table import shown
from murmur.simulation.planner.timing import COUNTED, Timing, counted, minibatches_done
from murmur.worlds.virtual.cluster import Cluster
from murmur.worlds.virtual.world import VirtualWorld

BUSY_CARD = 0.7  # share of time in use from which a network card counts as the cause of waiting


@dataclass(frozen=True)
class EvaluationPoint:
    """Held-out figures of the consensus at one moment of a run."""

    seconds: float
    samples: float
    epoch: float
    consensus_distance: float | None
    figures: Mapping[str, float]

    @classmethod
    def of(cls, row: EvaluationRow) -> EvaluationPoint:
        return cls(row.seconds, row.samples, row.epoch or 0.0, row.consensus_distance, dict(row.figures))


@dataclass(frozen=True)
class Account:
    """One simulated run.

    Attributes:
        seconds: Virtual seconds of training, without evaluation.
        real_seconds: Real seconds of the simulation.
        since_seconds: Virtual seconds of earlier launches of a continued run; seconds of computing, waiting and
            communicating, and bytes of cards, count this launch alone.
        waiting_seconds, communicating_seconds: Seconds of each learner that it waited for others or for bytes,
            including those of averaging beside the gradient.
        staleness: {changes of the weights while the gradient was computed: steps of all learners}.
        card_bytes, card_bytes_per_second: Bytes sent through the network card of each node, and its bandwidth.
        clock_seconds: Virtual seconds of this launch until its last event, including evaluation and the end of the
            protocol.
        killed: Learners that were lost before the end.
        marks: Evaluation points.
        budget_minibatches: Minibatches of the whole budget, if the run did a part of it: only a part was timed, or a
            lost learner left its share undone. A timed run always has them; None: as many as ran.
        slowness: Mean seconds of a gradient of each learner over those of the fastest one; empty: all are equal.
    """

    strategy: str
    learners: int
    seconds: float
    real_seconds: float
    since_seconds: float
    minibatches: int
    samples: float
    compute_seconds: tuple[float, ...]
    waiting_seconds: tuple[float, ...]
    communicating_seconds: tuple[float, ...]
    staleness: Mapping[int, int]
    sent_bytes: tuple[float, ...]
    card_bytes: tuple[float, ...]
    card_bytes_per_second: tuple[float, ...]
    clock_seconds: float
    killed: tuple[int, ...]
    marks: tuple[EvaluationPoint, ...] = ()
    budget_minibatches: int | None = None
    slowness: tuple[float, ...] = ()

    @property
    def hours(self) -> float:
        return self.seconds / 3600

    @property
    def budget_hours(self) -> float:
        """Virtual hours of the whole budget, at the pace of this run."""
        if self.budget_minibatches is None or self.minibatches == 0:
            return self.hours
        return self.hours * self.budget_minibatches / self.minibatches

    @property
    def speed_up(self) -> float:
        """Minibatches per second relative to the fastest learner alone; 0 without any."""
        launch = self.seconds - self.since_seconds
        pairs = zip(self.compute_seconds, self.slowness or (1.0,) * self.learners, strict=True)
        return sum(seconds / slowness for seconds, slowness in pairs) / launch if launch > 0 else 0.0

    @property
    def idle(self) -> tuple[float, ...]:
        """Share of the run in which each learner did not compute; a killed learner is idle from its loss on."""
        launch = self.seconds - self.since_seconds
        return tuple(1 - compute / launch if launch > 0 else 0.0 for compute in self.compute_seconds)

    @property
    def card_use(self) -> tuple[float, ...]:
        """Share of the time that each card needed at full speed for the bytes that it sent."""
        pairs = zip(self.card_bytes, self.card_bytes_per_second, strict=True)
        return tuple(sent / speed / self.clock_seconds if sent else 0.0 for sent, speed in pairs)

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def mean_staleness(self) -> float:
        steps = sum(self.staleness.values())
        return sum(age * count for age, count in self.staleness.items()) / steps if steps else 0.0

    @property
    def binds(self) -> str:
        """Bottleneck of the run: compute, the slowest learner, or the network.

        The idle share is split into waiting for other learners and waiting for bytes, as recorded by the learners. If
        a card is busy, waiting for a message counts as waiting for the network. Idle time without a record lies at
        the end of the run, when fast learners wait for slow ones.
        """
        idle, waiting, moving = fmean(self.idle), sum(self.waiting_seconds), sum(self.communicating_seconds)
        if max(self.card_use, default=0.0) > BUSY_CARD:
            waiting, moving = 0.0, waiting + moving
        share = moving / (waiting + moving) if waiting + moving > 0 else 0.0
        return max((1 - idle, COMPUTE), (idle * (1 - share), STRAGGLER), (idle * share, NETWORK))[1]

    def described(self) -> dict[str, Any]:
        derived = {"hours": self.hours, "idle": self.idle, "card_use": self.card_use, "binds": self.binds}
        rate = {"samples_per_second": self.samples_per_second, "mean_staleness": self.mean_staleness}
        staleness = {str(age): count for age, count in sorted(self.staleness.items())}
        return {**asdict(self), **derived, **rate, "staleness": staleness}


def of_timing(timing: Timing, experiment: Experiment, cluster: Cluster, real_seconds: float) -> Account:
    experiment = experiment.scaled(cluster.learners)
    return Account(
        strategy=shown(experiment.strategy),
        learners=cluster.learners,
        budget_minibatches=experiment.total,
        seconds=timing.seconds,
        real_seconds=real_seconds,
        since_seconds=0.0,
        minibatches=timing.minibatches,
        samples=timing.minibatches * experiment.task.samples_per_epoch / experiment.per_epoch,
        staleness=Counter(age for ages in timing.staleness for age in ages),
        card_bytes_per_second=card_speeds(cluster),
        slowness=slowness_of(cluster),
        **{name: getattr(timing, name) for name in COUNTED},
    )


def of_run(
    experiment: Experiment, world: VirtualWorld, seats: Sequence[Sequence[Seat]], out: Path, since_seconds: float
) -> Account:
    """Account of a run with gradients, from its records and its world (see `counted`); without real seconds."""
    records, cluster = read_run(out).records, world.cluster
    experiment = experiment.scaled(cluster.learners)
    staleness = sum(records.staleness.values(), Counter())
    done = minibatches_done(experiment.total, cluster, staleness.total())
    return Account(
        strategy=shown(experiment.strategy),
        learners=cluster.learners,
        seconds=records.last_seconds,
        real_seconds=0.0,
        since_seconds=since_seconds,
        budget_minibatches=experiment.total if done < experiment.total else None,
        minibatches=done,
        samples=done / experiment.per_epoch * experiment.task.samples_per_epoch,
        staleness=staleness,
        card_bytes_per_second=card_speeds(cluster),
        marks=tuple(EvaluationPoint.of(row) for row in records.evaluations),
        slowness=slowness_of(cluster),
        **counted(world, seats),
    )


def card_speeds(cluster: Cluster) -> tuple[float, ...]:
    nodes = cluster.places(range(cluster.learners))
    return tuple(cluster.links.get(node, cluster.link).bytes_per_second for node in nodes)
