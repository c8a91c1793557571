"""Cost of the engine: CPU seconds of a Trainer step with one learner against the bare PyTorch loop, same batches.

LSTM 3x256, minibatches of 64 chunks of 40 frames, one thread. CPU time of the process, so that a busy machine matters
less; the two sides take single steps in turn, and the figure is the median ratio over groups of eight steps.

    python benchmarks/overhead.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.functional import cross_entropy

from measure import bar, close
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.task import Loss, Score
from murmur.engine.trainer import Trainer
from murmur.strategies import KAVG, SyncSGD
from murmur.worlds.process.environment import Place
from murmur.worlds.process.world import ProcessWorld

KIND = "bar"
STEPS, WARM = 56, 3


class Lstm(nn.Module):
    def __init__(self, layers: int = 3, cells: int = 256, outputs: int = 500) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, cells, layers, batch_first=True)
        self.out = nn.Linear(cells, outputs)

    def forward(self, feats_NTF: Tensor) -> Tensor:
        return self.out(self.lstm(feats_NTF)[0])


@dataclass(frozen=True)
class Chunks:
    """Random chunks; eight different minibatches, made once."""

    chunks: int = 64
    frames: int = 40
    per_epoch: int = 1_000_000

    @property
    def samples_per_epoch(self) -> float:
        return float(self.per_epoch * self.chunks * self.frames)

    @cached_property
    def data(self) -> list[tuple[Tensor, Tensor]]:
        draw = torch.Generator().manual_seed(1)
        shape = (self.chunks, self.frames)
        return [(torch.randn(*shape, 40, generator=draw), torch.randint(500, shape, generator=draw)) for _ in range(8)]

    def prepare(self) -> None:
        pass

    def model(self) -> nn.Module:
        return Lstm()

    def minibatch(self, n: int) -> tuple[Tensor, Tensor]:
        return self.data[n % 8]

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, Tensor]) -> Loss:
        feats, states = minibatch
        return Loss(cross_entropy(model(feats).flatten(0, 1), states.flatten(), reduction="sum"), float(states.numel()))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return {}

    def test(self, model: nn.Module) -> Score:
        return Score()


class Alternating(SGD):
    """An optimizer whose every step is followed by one of the bare loop, so that both sides see the same machine."""

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = super().__call__(model)
        optimizer.register_step_post_hook(lambda *_: SIDES[0].turn())
        return optimizer


class Bare:
    """The plain loop, one step at a time, and the CPU seconds of both sides."""

    def __init__(self, task: Chunks) -> None:
        self.task, self.step = task, 0
        torch.manual_seed(0)
        self.model = task.model()
        self.optimizer = SGD(0.1, momentum=0.9)(self.model)
        self.ours: list[float] = []
        self.bare: list[float] = []
        self.left = time.process_time()

    def turn(self) -> None:
        """Record the Trainer's step that has just ended, take a bare one, and record it."""
        came = time.process_time()
        self.ours.append(came - self.left)
        loss = self.task.loss(self.model, self.task.minibatch(self.step))
        self.optimizer.zero_grad()
        (loss.total / loss.samples).backward()
        self.optimizer.step()
        float(loss.total.detach())  # every training loop reads the loss
        self.step += 1
        self.left = time.process_time()
        self.bare.append(self.left - came)


SIDES: list[Bare] = []


def compare(task: Chunks, strategy: SyncSGD | KAVG, steps: int = STEPS) -> tuple[list[float], list[float]]:
    """CPU seconds of every step of ours and of the bare loop, without the first ones, which warm up."""
    SIDES[:] = [Bare(task)]
    experiment = Experiment(
        task, strategy, Budget(minibatches=steps + WARM), Alternating(0.1, momentum=0.9), scaling=Fixed()
    )
    Trainer(experiment, ProcessWorld(Place(0, 1, 0, "127.0.0.1", 0), store=HashStore())).fit()
    return SIDES[0].ours[WARM:], SIDES[0].bare[WARM:]


def main() -> None:
    torch.set_num_threads(1)
    task = Chunks()
    figures, bars = {}, []
    for name, strategy in (("SyncSGD", SyncSGD()), ("KAVG(8)", KAVG(8))):
        ours, bare = compare(task, strategy)
        # Medians of groups of eight steps, so that the mean after every eighth is in each of them.
        groups = [statistics.fmean(ours[i : i + 8]) / statistics.fmean(bare[i : i + 8]) for i in range(0, STEPS, 8)]
        print(f"{name}: ours {[round(t, 4) for t in ours]}\n{name}: bare {[round(t, 4) for t in bare]}")
        figures[name] = {"ours_cpu_seconds": ours, "bare_cpu_seconds": bare, "ratios": groups}
        bars.append(bar(f"{name} step / bare step, CPU time", statistics.median(groups), 1.01))
    close("overhead", figures, bars)


if __name__ == "__main__":
    main()
