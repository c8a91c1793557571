"""Predictions of `sixteen_devices.py` by the simulator and by the planner, from what was measured before the runs.

Measured with one or two learners: seconds of a paced gradient with its step, their spread, the part of the backward
pass behind which a sum of gradients can run; seconds of a message, of a mean and of an addition, between two hosts and
inside one. Set: the slowness of a slow learner, and the speed of the links. Nothing is fitted to a run of many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from murmur.simulation.planner.forms import form_of
from murmur.simulation.planner.setting import ClusterSetting
from murmur.simulation.planner.timing import time_strategy
from murmur.worlds.virtual.cluster import Cluster, Link, LognormalSeconds
from namespaces import Pair
from sixteen_study import BLSTM_SETUP, Cell, Scale, bits_per_second

NOMINAL_BYTES, NOMINAL_LATENCY = 1.6e6, 1e-4  # of a plan before anything is measured


@dataclass(frozen=True)
class Told:
    """What the simulator is told.

    Attributes:
        seconds: seconds of a gradient with its step.
        sigma: spread of these seconds (standard deviation of their logarithm).
        hidden: share of a gradient's seconds behind which its sum can run.
        between, inside: links between hosts and inside one.
        reduce_bytes_per_second: speed of adding vectors.
        message_bytes: bytes of the model.
    """

    seconds: float
    sigma: float
    hidden: float
    between: Link
    inside: Link
    reduce_bytes_per_second: float
    message_bytes: float

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Told:
        """From the row of the measurements."""
        size, between, inside = 4.0 * row["numel"], Pair(**row["between"]), Pair(**row["inside"])
        return cls(
            seconds=row["seconds"],
            sigma=row["sigma"],
            hidden=row["hidden"],
            between=link_of(between, between.mean - between.message - between.adding / 2, size),
            inside=link_of(inside, inside.exchange - inside.message / 2, size),
            reduce_bytes_per_second=size / between.adding,
            message_bytes=size,
        )

    @classmethod
    def nominal(cls, scale: Scale) -> Told:
        """For a plan before anything is measured."""
        speed = bits_per_second(NOMINAL_BYTES, scale) / 8
        return cls(scale.pace, 0.0, 0.0, Link(NOMINAL_LATENCY, speed), Link(NOMINAL_LATENCY, 1e9), 1e9, NOMINAL_BYTES)

    def cluster(self, cell: Cell, scale: Scale) -> Cluster:
        where = cell.where(scale)
        step = self.seconds - scale.pace  # of the optimizer and of Python, which are not slowed down
        factors = {} if cell.slow == 1 else {len(where) - 1: (cell.slow * scale.pace + step) / self.seconds}
        return Cluster(
            learners=len(where),
            compute=LognormalSeconds(self.seconds, self.sigma, factors=factors),
            link=self.between,
            inside=self.inside,
            message_bytes=self.message_bytes,
            learners_per_node=where.count(0),
            reduce_bytes_per_second=self.reduce_bytes_per_second,
            backward_share=self.hidden,
        )


def link_of(pair: Pair, moving: float, size: float) -> Link:
    """The link of two learners on which a vector takes `moving` seconds, which a small vector may hide in noise.

    Between hosts that is the rest of a mean of two (`Pair.link`). Inside a host a mean takes no longer than its
    messages, and the rest of an exchange of whole vectors is taken.
    """
    return Link(pair.message / 2, size / max(moving, pair.adding))


def simulated(cell: Cell, scale: Scale, told: Told, minibatches: int) -> float:
    """Seconds of the whole run in virtual time: the real protocols, with empty weights."""
    cluster = told.cluster(cell, scale)
    return time_strategy(cell.made, cluster, minibatches, samples_of(scale)).seconds


def planned(cell: Cell, scale: Scale, told: Told, minibatches: int) -> float:
    """Seconds of a run by the closed form of its strategy."""
    setting = ClusterSetting.of(told.cluster(cell, scale), samples_of(scale))
    return float(form_of(cell.made, setting).seconds * minibatches)


def predicted(cell: Cell, scale: Scale, told: Told, minibatches: int) -> dict[str, float]:
    return {
        "simulate": simulated(cell, scale, told, minibatches),
        "plan": planned(cell, scale, told, minibatches),
    }


def samples_of(scale: Scale) -> float:
    """Frames of a piece."""
    return BLSTM_SETUP.unit_frames * BLSTM_SETUP.minibatch / scale.learners
