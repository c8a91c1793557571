"""The machines of five papers as virtual clusters, with the cost of a frame of a small run.

A learner's minibatch in the runs with the most learners of a study represents the minibatch of one of the paper's
devices, and takes the same seconds. Other minibatches take seconds in proportion to their frames. Messages have the
size of the paper's model. All numbers of the papers are in `murmur_papers.recipes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from murmur.worlds.virtual.cluster import Cluster, Link, LognormalSeconds
from murmur_papers.recipes import cong2017, cui2021, rosciszewski2017, su_chen2015, zhang2019

PACE_SECONDS = 1.2  # of a gradient of `benchmarks/sixteen_devices.py`


@dataclass(frozen=True)
class Machines:
    """The machines of a recipe; `frames` of ours stand for the minibatch of one device, as `told`."""

    recipe: Any
    frames: float
    told: str

    @cached_property
    def cluster(self) -> Cluster:
        found: Cluster = self.recipe.experiment().cluster
        return found

    def seconds(self, frames: float) -> float:
        compute: Any = self.cluster.compute
        return float(compute.seconds * frames / self.frames)

    def alone(self, frames: float) -> float:
        """Mean seconds of one learner for so many frames: it exchanges nothing."""
        return self.seconds(frames) * math.exp(self.recipe.SIGMA**2 / 2)

    def through_the_card(self, models: float) -> float:
        """Least seconds of a step in which every learner of a node sends so many models through the node's card."""
        size = self.recipe.PAPER.message_bytes
        return float(models * size * self.cluster.learners_per_node / self.cluster.link.bytes_per_second)

    def virtual(self, learners: int, frames: float, slow: float, models: float) -> Cluster:
        """A virtual cluster whose learners have minibatches of so many frames.

        Args:
            slow: factor on the time of the last learner.
            models: models that each learner sends through its node's card in every step, which then takes at least
                the time of these; 0: a step does not wait.
        """
        factors = {learners - 1: slow} if slow != 1 else {}
        seconds = max(self.seconds(frames), self.through_the_card(models))
        compute = LognormalSeconds(seconds, self.recipe.SIGMA, factors=factors)
        return replace(self.cluster, learners=learners, compute=compute)


@dataclass(frozen=True)
class PacedHosts(Machines):
    """Hosts of `benchmarks/sixteen_devices.py`: the recipe's machines at another pace, a model's share of it alike.

    Attributes:
        node: learners of a host.
    """

    node: int = 1

    @cached_property
    def cluster(self) -> Cluster:
        found: Cluster = self.recipe.experiment().cluster
        compute: Any = found.compute
        times, card = PACE_SECONDS / compute.seconds, found.link
        return Cluster(
            compute=replace(compute, seconds=PACE_SECONDS),
            link=Link(card.latency_seconds * times, card.bytes_per_second / times),
            message_bytes=found.message_bytes,
            learners_per_node=self.node,
        )


PACED = f"{PACE_SECONDS:g} s a gradient of ten windows, a model 0.085 of it through a host's card"
MACHINES: Mapping[str, Machines] = {
    "rosciszewski2017": Machines(
        rosciszewski2017,
        255.0,
        "two workstations of four devices, 1 Gb/s; one utterance stands for 100 chunks of 50 frames",
    ),
    "su_chen2015": Machines(su_chen2015, 104.0, "K20 devices, two a node, InfiniBand; 104 frames stand for 512"),
    "cong2017": Machines(
        cong2017, 8.2 * 20.5, "P100 devices, four a node, InfiniBand; eight windows stand for 128 sequences"
    ),
    "cui2021": Machines(
        cui2021, 10.25 * 20.5, "V100 devices, six a node, InfiniBand; ten windows stand for 64 sequences"
    ),
    "zhang2019": Machines(
        zhang2019, 6 * 20.5, "V100 devices, eight a node, 100 Gb/s Ethernet; six windows stand for 128 sequences"
    ),
    "hosts": PacedHosts(cui2021, 10.25 * 20.5, f"hosts of one learner, {PACED}"),
    "hosts of four": PacedHosts(cui2021, 10.25 * 20.5, f"hosts of four learners, {PACED}", 4),
}
