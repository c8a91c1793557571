"""Learners of several speeds that are killed and started again: launches of `goodput.py` in the virtual world."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from murmur.core.errors import IncompleteRun
from murmur.core.facts import Facts, layers
from murmur.core.group import PeerLost
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.engine.experiment import Experiment
from murmur.engine.record import Observer, Record
from murmur.engine.trainer import Outcome, Trainer
from murmur.worlds.virtual.cluster import Cluster, Kill, Rejoin
from murmur.worlds.virtual.world import VirtualWorld
from murmur_papers.studies.networks import BLSTM, SETUPS

SETUP = SETUPS["blstm"]


@dataclass(frozen=True)
class Scale:
    """Learners, links, faults and length of the runs.

    Attributes:
        speeds: compute times over those of the fastest learners, in equal parts of all learners.
        weights: weights of the stated network.
        kill_seconds: interval in which one learner is killed; infinity: none is.
        restart_seconds: from a kill to the new start, of one learner or of all.
        checkpoint_seconds, seldom_seconds: between checkpoints of strategies that do not tolerate losses, and of
            others, at the pace of a run without faults.
        turns: minibatches of one learner in a run; None: the budget of the study.
        hidden: cells of a layer of the network on generated frames.
    """

    learners: int = 16
    speeds: tuple[float, ...] = (1.0, 4 / 3, 2.0, 4.0)
    weights: float = 10e6
    bytes_per_second: float = 12.5e6
    latency_seconds: float = 1e-3
    kill_seconds: float = 60.0
    restart_seconds: float = 20.0
    lease_seconds: float = 10.0
    checkpoint_seconds: float = 30.0
    seldom_seconds: float = 300.0
    turns: int | None = None
    hidden: int = BLSTM.hidden

    def slowness(self, place: int) -> float:
        return self.speeds[place * len(self.speeds) // self.learners]

    @property
    def power(self) -> float:
        """Gradients of all learners in the time of one of a fastest learner."""
        return sum(1 / self.slowness(place) for place in range(self.learners))

    def gradient_seconds(self, trained_weights: int) -> float:
        """Seconds of a gradient of a piece, of the stated network on a fastest learner."""
        whole = SETUP.frame_seconds * SETUP.minibatch * SETUP.unit_frames
        return whole / self.learners * self.weights / trained_weights


def kills_of(scale: Scale, seed: int, seconds: float) -> tuple[Kill, ...]:
    """One kill in each interval up to so many seconds, of a place among the training learners that is up."""
    draw, found = random.Random(f"kills {seed}"), list[Kill]()
    for number in range(math.ceil(seconds / scale.kill_seconds)):
        at = scale.kill_seconds * (number + draw.random())
        down = {kill.learner for kill in found[-2:] if at < kill.at_seconds + scale.restart_seconds}
        found.append(Kill(draw.choice([p for p in range(scale.learners) if p not in down]), at))
    return tuple(found)


def faults_of(
    kills: Sequence[Kill], began: float, strategy: Strategy, servers: int, restart_seconds: float
) -> tuple[Kill | Rejoin, ...]:
    """Faults of a launch that begins at a moment; the first kill is the last one if the strategy tolerates none."""
    later = [replace(kill, at_seconds=kill.at_seconds - began) for kill in kills if kill.at_seconds > began]
    if not Facts.of(strategy).tolerates_loss:
        return tuple(replace(kill, learner=servers + kill.learner) for kill in later[:1])
    faults, unit = list[Kill | Rejoin](), math.prod(getattr(layer, "node_size", 1) for layer in layers(strategy))
    for kill in later:
        first, at = servers + kill.learner // unit * unit, kill.at_seconds
        faults += [Kill(first + member, at) for member in range(unit)]
        faults += [Rejoin(first + member, at + restart_seconds) for member in range(unit)]
    return tuple(faults)


@dataclass(frozen=True)
class Launch:
    """A launch of a run, or all its launches; without an outcome a loss has ended it.

    Attributes:
        seconds: virtual seconds until the last step, or until the loss.
        gradients: number of gradients that were begun.
    """

    seconds: float
    gradients: int
    outcome: Outcome | None = None
    launches: int = 1


def endure(launch: Callable[[float, bool], Launch], restart_seconds: float, most_seconds: float) -> Launch:
    """Launch a run again after each loss, from its latest checkpoint, until it is done or its time is over.

    Args:
        launch: function of the moment at which a launch begins, and of whether it resumes.
        restart_seconds: from a loss to the next launch.
        most_seconds: moment from which no launch begins.
    """
    began, gradients, launches = 0.0, 0, 0
    while began < most_seconds:
        found = launch(began, launches > 0)
        launches, gradients = launches + 1, gradients + found.gradients
        if found.outcome is not None:
            return Launch(began + found.seconds, gradients, found.outcome, launches)
        began += found.seconds + restart_seconds
    return Launch(began, gradients, None, launches)


@dataclass(frozen=True)
class Launcher:
    """Launches a run in the virtual world, with the kills that are left.

    Attributes:
        out: folder of the checkpoints.
    """

    experiment: Experiment
    cluster: Cluster
    kills: tuple[Kill, ...]
    scale: Scale
    out: Path

    def __call__(self, began: float, resume: bool) -> Launch:
        servers = max(0, self.cluster.learners - self.scale.learners)
        faults = faults_of(self.kills, began, self.experiment.strategy, servers, self.scale.restart_seconds)
        begun, seen = list[float](), list[float]()

        def compute(learner: int, step: int) -> float:
            begun.append(world.clock.now)
            return self.cluster.compute(learner, step)

        def observers(seat: Seat) -> tuple[Observer, ...]:
            def note(record: Record) -> None:
                if record.kind == "step":
                    seen.append(seat.now)

            return (note,)

        world = VirtualWorld(replace(self.cluster, compute=compute, faults=faults))
        try:
            outcome = Trainer(self.experiment, world, self.out, observers, resume).fit()
        except (PeerLost, IncompleteRun) as error:
            if not faults or (isinstance(error, IncompleteRun) and not error.lost):
                raise
            tolerant = Facts.of(self.experiment.strategy).tolerates_loss
            lost = world.clock.now if tolerant else faults[0].at_seconds  # the launcher ends the others at once
            return Launch(lost, sum(at <= lost for at in begun))
        return Launch(max(seen, default=0.0), len(begun), outcome)
