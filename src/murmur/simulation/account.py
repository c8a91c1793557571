"""What a simulated run showed: seconds, who computed and who waited, staleness, bytes, what bound it, the marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from murmur.core import trace
from murmur.core.world import Seat
from murmur.engine.experiment import Experiment
from murmur.report.read import read_run
from murmur.simulation.planner.forms import COMPUTE, NETWORK, STRAGGLER
from murmur.simulation.planner.table import shown
from murmur.simulation.planner.timing import Timing
from murmur.worlds.virtual.cluster import Cluster
from murmur.worlds.virtual.world import VirtualWorld

BUSY_CARD = 0.7  # a card that is in use for so much of the time is what messages wait for


@dataclass(frozen=True)
class EvaluationPoint:
    """Held-out figures of the consensus after so many epochs and virtual seconds."""

    seconds: float
    samples: float
    epoch: float
    consensus_distance: float | None
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Account:
    """One simulated run.

    Attributes:
        strategy: as one would write it.
        learners: how many.
        seconds: virtual, of training; evaluation is left out.
        real_seconds: that the simulation took.
        since_seconds: virtual seconds of earlier launches, where the run was continued; compute, waiting, communicating
            and bytes are of this launch alone.
        minibatches, samples: of all learners together.
        compute_seconds: of each learner.
        waiting_seconds, communicating_seconds: of each learner, for others to come and for bytes; beside the gradient,
            where averaging runs beside it.
        staleness: {changes of the weights while the gradient was computed: steps of all learners}.
        sent_bytes: by each learner.
        card_bytes, card_bytes_per_second: out through the card of each node, and what the card could do.
        clock_seconds: virtual seconds of this launch until its last event, evaluation and the end of the protocol
            included.
        killed: learners that did not live to the end.
        marks: evaluations.
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

    @property
    def hours(self) -> float:
        """Virtual hours of training."""
        return self.seconds / 3600

    @property
    def idle(self) -> tuple[float, ...]:
        """Share of the run that each learner did not compute; from its death on a killed learner is idle."""
        launch = self.seconds - self.since_seconds
        return tuple(1 - compute / launch if launch > 0 else 0.0 for compute in self.compute_seconds)

    @property
    def card_use(self) -> tuple[float, ...]:
        """Share of the time that what left through each card took at its full speed."""
        pairs = zip(self.card_bytes, self.card_bytes_per_second, strict=True)
        return tuple(sent / speed / self.clock_seconds if sent else 0.0 for sent, speed in pairs)

    @property
    def samples_per_second(self) -> float:
        """Of all learners, a virtual second."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def mean_staleness(self) -> float:
        """Over all steps."""
        steps = sum(self.staleness.values())
        return sum(age * count for age, count in self.staleness.items()) / steps if steps else 0.0

    @property
    def binds(self) -> str:
        """What would have to be faster first: compute, the slowest learner, or the network.

        The idle share is split as learners noted it: waiting for others to come, or for bytes. Waiting for a letter
        counts as the network's where a card is busy. Idle time that nobody noted is the end of the run, when fast
        learners wait for slow ones.
        """
        idle, waiting, moving = fmean(self.idle), sum(self.waiting_seconds), sum(self.communicating_seconds)
        if max(self.card_use, default=0.0) > BUSY_CARD:
            waiting, moving = 0.0, waiting + moving
        share = moving / (waiting + moving) if waiting + moving > 0 else 0.0
        return max((1 - idle, COMPUTE), (idle * (1 - share), STRAGGLER), (idle * share, NETWORK))[1]

    def described(self) -> dict[str, Any]:
        """All of it, and what follows from it, in JSON's terms."""
        derived = {"hours": self.hours, "idle": self.idle, "card_use": self.card_use, "binds": self.binds}
        rate = {"samples_per_second": self.samples_per_second, "mean_staleness": self.mean_staleness}
        staleness = {str(age): count for age, count in sorted(self.staleness.items())}
        return {**asdict(self), **derived, **rate, "staleness": staleness}


def of_timing(timing: Timing, experiment: Experiment, cluster: Cluster, real_seconds: float) -> Account:
    """The account of a run without gradients."""
    task = experiment.task
    return Account(
        strategy=shown(experiment.strategy),
        learners=cluster.learners,
        seconds=timing.seconds,
        real_seconds=real_seconds,
        since_seconds=0.0,
        minibatches=timing.minibatches,
        samples=timing.minibatches * task.samples_per_epoch / task.per_epoch,
        compute_seconds=timing.compute_seconds,
        waiting_seconds=timing.waiting_seconds,
        communicating_seconds=timing.communicating_seconds,
        staleness=Counter(age for ages in timing.staleness for age in ages),
        sent_bytes=timing.sent_bytes,
        card_bytes=timing.card_bytes,
        card_bytes_per_second=_speeds(cluster),
        clock_seconds=timing.clock_seconds,
        killed=timing.killed,
    )


def of_run(
    experiment: Experiment, world: VirtualWorld, seats: Sequence[Sequence[Seat]], out: Path, since_seconds: float
) -> Account:
    """The account of a run with gradients, without its real seconds: from its records, seats and ledger.

    `seats`: of each learner, one for each time it was started.
    """
    records, cluster, network = read_run(out).records, world.cluster, world.network
    total = experiment.budget.total(experiment.task)
    totals = [[seat.trace.totals() for seat in lives] for lives in seats]

    def spent(kind: str) -> tuple[float, ...]:
        return tuple(sum(life.get(kind, 0.0) for life in lives) for lives in totals)

    return Account(
        strategy=shown(experiment.strategy),
        learners=cluster.learners,
        seconds=records.last_seconds,
        real_seconds=0.0,
        since_seconds=since_seconds,
        minibatches=total,
        samples=total / experiment.task.per_epoch * experiment.task.samples_per_epoch,
        compute_seconds=spent(trace.COMPUTE),
        waiting_seconds=spent(trace.WAITING),
        communicating_seconds=spent(trace.COMMUNICATING),
        staleness=sum(records.staleness.values(), Counter()),
        sent_bytes=tuple(network.sent_bytes[i] for i in range(cluster.learners)),
        card_bytes=tuple(network.card_bytes[n] for n in cluster.places(range(cluster.learners))),
        card_bytes_per_second=_speeds(cluster),
        clock_seconds=world.clock.now,
        killed=tuple(world.killed),
        marks=tuple(
            EvaluationPoint(e.seconds, e.samples, e.epoch, e.consensus_distance, dict(e.figures))
            for e in records.evaluations
        ),
    )


def _speeds(cluster: Cluster) -> tuple[float, ...]:
    nodes = cluster.places(range(cluster.learners))
    return tuple(cluster.links.get(node, cluster.link).bytes_per_second for node in nodes)
