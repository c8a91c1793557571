"""Input of the closed forms: a cluster with a table of its compute times."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from murmur.worlds.virtual.clock import Clock
from murmur.worlds.virtual.cluster import Cluster
from murmur.worlds.virtual.network import Network

Times = NDArray[np.float64]  # (draws, learners), seconds
DRAWS, CELLS = 512, 65_536  # rows of the table; fewer for very many learners
BY_CHANCE = 8.0  # standard errors by which the sampled means of a thousand equal learners differ at most
COMPUTE, NETWORK, STRAGGLER = "compute", "network", "slowest learner"


def drawn_times(cluster: Cluster) -> Times:
    draws = max(32, min(DRAWS, CELLS // cluster.learners))
    rows = [[cluster.compute(i, k) for i in range(cluster.learners)] for k in range(draws)]
    return np.asarray(rows, dtype=np.float64)


def seconds_alone(times: Times) -> float:
    """Return the mean seconds of a gradient of the fastest learner: one learner is not slow by the cluster's straggler.

    Learners that differ from the fastest by chance alone count as equal to it. The least of many sampled means would be
    too small.
    """
    means, errors = times.mean(0), times.std(0) / len(times) ** 0.5
    fastest = int(means.argmin())
    equal = means <= means[fastest] + BY_CHANCE * errors[fastest]
    return float(means[equal].mean())


def slowness_of(cluster: Cluster) -> tuple[float, ...]:
    """Return the mean seconds of a gradient of each learner, over those of the fastest one."""
    times = drawn_times(cluster)
    return tuple(float(mean) for mean in times.mean(0) / seconds_alone(times))


@dataclass(frozen=True)
class ClusterSetting:
    """A cluster with the table of its compute times.

    Attributes:
        unit: Minibatches in the gradient of one entry of the table (several for a node of learners).
        samples: Samples of a minibatch, for strategies that count them; None: unknown.
    """

    cluster: Cluster
    times: Times
    unit: int = 1
    samples: float | None = None
    size: float = field(init=False)

    def __post_init__(self) -> None:
        if self.cluster.message_bytes is None:
            raise ValueError("planning needs Cluster.message_bytes, the size of the model in bytes")
        object.__setattr__(self, "size", self.cluster.message_bytes)

    @classmethod
    def of(cls, cluster: Cluster, samples: float | None = None) -> ClusterSetting:
        return cls(cluster, drawn_times(cluster), samples=samples)

    @property
    def learners(self) -> int:
        return int(self.times.shape[1])

    @property
    def copies(self) -> float:
        """Seconds of copying one vector between device and host."""
        return self.size / self.cluster.copy_bytes_per_second

    def synchronous(self) -> Times:
        """Seconds of a step of synchronous SGD, (draws,): the slowest gradient, and what its sum takes after it."""
        network, learners, size = Network(Clock(), self.cluster), range(self.cluster.learners), int(self.size) or 1
        slowest = self.times.max(1)
        exposed = [network.exposed_allreduce_seconds(learners, size, float(t)) for t in slowest]
        steps: Times = slowest + np.asarray(exposed)
        return steps

    def broadcast(self) -> float:
        """Seconds of a broadcast by the first learner of the cluster."""
        return Network(Clock(), self.cluster).broadcast_seconds(range(self.cluster.learners), int(self.size) or 1, 0)

    def allreduce(self, vectors: int = 1, parts: int = 1) -> float:
        """Seconds of a mean of all learners of the cluster, of some vectors cut into equal parts, one of them."""
        if self.cluster.learners < 2:
            return 0.0
        network = Network(Clock(), self.cluster)
        network.whole = parts
        return network.allreduce_seconds(range(self.cluster.learners), int(self.size) or 1, vectors)


FRAMES_PER_SECOND = 100.0


@dataclass(frozen=True)
class Work:
    """One epoch of training.

    Attributes:
        corpus_hours: Hours of audio in one pass over the corpus.
        frames_per_minibatch: Frames in a minibatch of one learner.
        optimizer_bytes: Bytes of the optimizer's state (for momentum as many as the model's).
    """

    corpus_hours: float
    frames_per_minibatch: float
    model_bytes: float
    optimizer_bytes: float = 0.0
    frames_per_second: float = FRAMES_PER_SECOND

    def __post_init__(self) -> None:
        for what in ("corpus_hours", "frames_per_minibatch", "model_bytes", "frames_per_second"):
            if not 0 < getattr(self, what) < float("inf"):
                raise ValueError(f"Work.{what} must be positive and finite, got {getattr(self, what)}")
        if not 0 <= self.optimizer_bytes < float("inf"):
            raise ValueError(f"Work.optimizer_bytes must be finite and not negative, got {self.optimizer_bytes}")

    @property
    def minibatches(self) -> float:
        return self.corpus_hours * 3600 * self.frames_per_second / self.frames_per_minibatch


def step_seconds(flops_per_frame: float, frames: float, device_flops: float, utilisation: float) -> float:
    """Return the seconds of a gradient from its floating-point operations.

    Args:
        flops_per_frame: Operations of forward and backward pass per frame: about six per weight that a frame passes
            (two forward, four backward).
        frames: Frames of a minibatch.
        device_flops: Peak operations per second.
        utilisation: Share of the peak that is reached, 0 to 1.
    """
    given = {"flops_per_frame": flops_per_frame, "frames": frames, "device_flops": device_flops}
    for what, value in given.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{what} must be positive and finite, got {value}")
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation must lie in (0, 1], got {utilisation}")
    return flops_per_frame * frames / (device_flops * utilisation)
