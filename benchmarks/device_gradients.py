"""Gradients a second in the virtual world: each alone on the host, all together on the host, all together on a GPU.

    python benchmarks/device_gradients.py

The network is the BLSTM of `murmur papers` on random windows; one process, one thread. Without a GPU two columns
remain.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import nn

from murmur.core.source import ComputeBatch, Gradient, PendingGradient
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.engine.scaling import Auto
from murmur.engine.schedule import Constant
from murmur.engine.stacked import draw_together
from murmur.engine.trainer import Trainer
from murmur.speech.features.chunks import ChunkBatch, ChunkTable
from murmur.speech.tasks.frames import FramesTask
from murmur.strategies import ADPSGD
from murmur.tasks.generated_frames import GeneratedFrames
from murmur.worlds.virtual.cluster import Cluster, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from murmur_papers.studies.device_gradients import DeviceGradients
from murmur_papers.studies.networks import BLSTM, WINDOWS

KIND = "study"
FRAMES = GeneratedFrames(count=400, length=400, dims=40, classes=900)
WAYS = ("alone", "together", "GPU")


class EnoughError(Exception):
    """End of a measurement."""


@dataclass(frozen=True)
class Windows(FramesTask):
    """Windows of generated frames."""

    @property
    def order(self) -> ChunkTable:
        return ChunkTable(FRAMES.lengths, **asdict(self.chunks), seed=self.seed)

    def model(self) -> nn.Module:
        return self.network.build(FRAMES.dims, FRAMES.classes)

    def minibatch(self, n: int) -> ChunkBatch:
        return self.order.batch(n, FRAMES)

    def piece(self, n: int, number: int, of: int) -> ChunkBatch | None:
        return self.order.piece(n, number, of, FRAMES)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {"loss": self.loss(model, self.minibatch(0)).total.item()}


class Timed:
    """A way to compute gradients that ends the run after some seconds; the first seconds do not count."""

    def __init__(self, way: ComputeBatch, warm: float, seconds: float) -> None:
        self._way, self._warm, self._seconds = way, warm, seconds
        self._began = time.monotonic()
        self.gradients, self.counted_from = 0, 0.0

    def __call__(self, drawings: Sequence[PendingGradient]) -> list[Gradient]:
        now = time.monotonic()
        if not self.counted_from and now - self._began > self._warm:
            self.counted_from = now
        elif self.counted_from and now - self.counted_from > self._seconds:
            raise EnoughError
        self.gradients += len(drawings) if self.counted_from else 0
        return self._way(drawings)

    @property
    def rate(self) -> float:
        """Gradients a second."""
        return self.gradients / (time.monotonic() - self.counted_from)


def alone(drawings: Sequence[PendingGradient]) -> list[Gradient]:
    """Each gradient by a pass of its own; a gradient is valid until its learner's next one."""
    return [drawing() for drawing in drawings]


def rate(way: str, learners: int, seconds: float) -> float:
    """Gradients a second of one way; learners of asynchronous pairwise averaging with six windows each."""
    task = Windows(network=BLSTM, chunks=replace(WINDOWS, size=6 * learners))
    experiment = Experiment(
        task,
        ADPSGD(),
        Budget(minibatches=1_000_000),
        Adam(lr=1e-3),
        Constant(),
        scaling=Auto("stays"),
        evaluate_every_epochs=1e6,
        max_gradient_norm=5.0,
        averaged_checkpoints=0,
        prefetch=0,
    )
    ways: dict[str, ComputeBatch] = {"alone": alone, "together": draw_together}
    timed = Timed(DeviceGradients("cuda") if way == "GPU" else ways[way], seconds, seconds)
    world = VirtualWorld(
        Cluster(learners, LognormalSeconds(1.0, 0.1)), together=timed, device="cuda" if way == "GPU" else "cpu"
    )
    try:
        Trainer(experiment, world).fit()
    except EnoughError:
        return timed.rate
    raise AssertionError("the budget is too small")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement, after as many to warm up")
    parser.add_argument("--learners", type=int, nargs="+", default=[1, 16, 64])
    args = parser.parse_args()
    torch.set_num_threads(1)
    ways = WAYS if torch.cuda.is_available() else WAYS[:2]
    print("| learners | " + " | ".join(ways) + " |")
    for learners in args.learners:
        found = [rate(way, learners, args.seconds) for way in ways]
        print(f"| {learners} | " + " | ".join(f"{each:.0f}" for each in found) + " |", flush=True)


if __name__ == "__main__":
    main()
