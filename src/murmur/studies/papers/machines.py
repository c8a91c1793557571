"""The machines of five papers as virtual clusters, with the cost of a frame of a small run.

A learner's minibatch in the runs with the most learners of a study represents the minibatch of one of the paper's
devices, and takes the same seconds. Other minibatches take seconds in proportion to their frames. Messages have the
size of the paper's model. The numbers of the papers, and the assumed numbers, are in `murmur.recipes.papers` and
`murmur.worlds.virtual.presets`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from murmur.recipes.papers import cong2017, cui2021, rosciszewski2017, su_chen2015, zhang2019
from murmur.recipes.papers.swb2000 import P100_OVER_V100, SEQUENCE_SECONDS
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds
from murmur.worlds.virtual.presets import preset


@dataclass(frozen=True)
class Machines:
    """A cluster and the cost of a frame on its devices.

    Attributes:
        cluster: name of the preset.
        piece_seconds: seconds of the paper's minibatch on one device.
        piece_frames: frames of ours that stand for it.
        message_bytes: size of the paper's model.
        sigma: spread of the seconds (standard deviation of the logarithm).
        told: what stands for what.
    """

    cluster: str
    piece_seconds: float
    piece_frames: float
    message_bytes: float
    sigma: float
    told: str

    def seconds(self, frames: float) -> float:
        """Median seconds of a gradient of so many of our frames."""
        return self.piece_seconds * frames / self.piece_frames

    def alone(self, frames: float) -> float:
        """Mean seconds of one learner for so many frames: it exchanges nothing."""
        return self.seconds(frames) * math.exp(self.sigma**2 / 2)

    def through_the_card(self, models: float) -> float:
        """Least seconds of a step in which every learner of a node sends so many models through the node's card."""
        kind = preset(self.cluster)
        return models * self.message_bytes * kind.learners_per_node / kind.link.bytes_per_second

    def virtual(self, learners: int, frames: float, slow: float, models: float) -> Cluster:
        """A virtual cluster.

        Args:
            learners: number of learners, servers included.
            frames: frames of a learner's minibatch.
            slow: factor on the time of the last learner.
            models: models that each learner sends through its node's card in every step, which then takes at least
                the time of these; 0: a step does not wait.
        """
        factors = {learners - 1: slow} if slow != 1 else {}
        seconds = max(self.seconds(frames), self.through_the_card(models))
        compute = LognormalSeconds(seconds, self.sigma, factors=factors)
        return preset(self.cluster).cluster(learners, compute, self.message_bytes)


_R = rosciszewski2017
_SU_CHEN = su_chen2015.PAPER.gradient_flops / su_chen2015.REACHED_FLOPS
MACHINES: Mapping[str, Machines] = {
    "rosciszewski2017": Machines(
        "workstations-1g",
        _R.PAPER.frames / _R.FRAMES_PER_SECOND,
        255.0,
        _R.PAPER.message_bytes,
        _R.SIGMA,
        "two workstations of four devices, 1 Gb/s; one utterance stands for 100 chunks of 50 frames",
    ),
    "su_chen2015": Machines(
        "k20-infiniband",
        _SU_CHEN,
        104.0,
        su_chen2015.PAPER.message_bytes,
        su_chen2015.SIGMA,
        "K20 devices, two a node, InfiniBand; 104 frames stand for 512",
    ),
    "cong2017": Machines(
        "p100-fdr",
        SEQUENCE_SECONDS * cong2017.PAPER.chunks.size / P100_OVER_V100,
        8.2 * 20.5,
        cong2017.PAPER.message_bytes,
        cong2017.SIGMA,
        "P100 devices, four a node, InfiniBand; eight windows stand for 128 sequences",
    ),
    "cui2021": Machines(
        "v100-power9",
        SEQUENCE_SECONDS * cui2021.PAPER.chunks.size,
        10.25 * 20.5,
        cui2021.PAPER.message_bytes,
        cui2021.SIGMA,
        "V100 devices, six a node, InfiniBand; ten windows stand for 64 sequences",
    ),
    "zhang2019": Machines(
        "v100-ethernet",
        SEQUENCE_SECONDS * zhang2019.PAPER.chunks.size,
        6 * 20.5,
        zhang2019.PAPER.message_bytes,
        zhang2019.SIGMA,
        "V100 devices, eight a node, 100 Gb/s Ethernet; six windows stand for 128 sequences",
    ),
}
