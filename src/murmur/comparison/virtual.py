"""A run in the virtual world without a folder: the summary of its records and of its time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from murmur.core.source import ComputeBatch
from murmur.core.trace import COMPUTE, Span
from murmur.core.world import Seat
from murmur.engine.experiment import Experiment
from murmur.engine.record import Observer, Record
from murmur.engine.trainer import Trainer
from murmur.worlds.virtual.cluster import Cluster
from murmur.worlds.virtual.world import VirtualWorld

LATE = 0.95  # share of a run after which learners are no longer apart as during training


@dataclass
class VirtualCourse:
    """Summary of a run's records and time; a run ended by non-finite losses has no model.

    Attributes:
        minibatches: planned number in total.
        curve: (samples of all learners, held-out loss, virtual seconds) at the evaluation points.
        seconds: virtual seconds of training, without evaluation.
        compute_seconds: computing time of all learners.
        stale: sum of the staleness of all steps.
        consensus_distance: distance at the last evaluation point of the first 95 % of the run. Near the end rates are
            low, and strategies make all learners equal.
    """

    learners: int
    minibatches: int
    model: nn.Module | None = None
    figures: dict[str, float] = field(default_factory=dict)
    ended: str | None = None
    curve: list[tuple[float, float, float]] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    compute_seconds: float = 0.0
    stale: int = 0
    consensus_distance: float | None = None
    sent_bytes: float = math.nan

    def see(self, record: Record) -> None:
        self.seconds = max(self.seconds, record.seconds)
        if record.kind == "evaluation":
            self.curve.append((record.samples, record.loss, record.seconds))
            if record.consensus_distance is not None and record.minibatches <= LATE * self.minibatches:
                self.consensus_distance = record.consensus_distance
        elif record.kind == "step":
            self.steps += 1
            self.stale += record.staleness

    def see_span(self, span: Span) -> None:
        """Add a stretch of any learner's time. Records lack gradients that no step has used."""
        if span.kind == COMPUTE:
            self.compute_seconds += span.end_seconds - span.start_seconds

    def described(self) -> dict[str, Any]:
        whole = self.learners * self.seconds
        return {
            "heldout": self.figures,
            "ended": self.ended,
            "curve": self.curve,
            "steps": self.steps,
            "seconds": self.seconds,
            "waiting_share": 1 - self.compute_seconds / whole if whole > 0 else None,
            "staleness": self.stale / self.steps if self.steps else None,
            "consensus_distance": self.consensus_distance,
            "sent_bytes": self.sent_bytes,
        }


def train(
    experiment: Experiment,
    cluster: Cluster,
    together: ComputeBatch | None = None,
    device: str = "cpu",
    further: tuple[Observer, ...] = (),
) -> VirtualCourse:
    """Train to the end of the budget, or until losses are not finite.

    Args:
        together: function that computes gradients of many learners in one call; None computes each alone.
        further: further observers of the records of all learners.
    """
    course = VirtualCourse(cluster.learners, experiment.scaled(cluster.learners).total)
    world = VirtualWorld(cluster, course.see_span, together, device=device)

    def observers(_: Seat) -> tuple[Any, ...]:
        return (course.see, *further)

    try:
        outcome = Trainer(experiment, world, observers=observers).fit()
    except FloatingPointError as error:
        course.ended = str(error)
    else:
        course.model, course.figures = outcome.model, dict(outcome.figures)
    course.sent_bytes = sum(world.network.sent_bytes.values())
    return course
