"""A task whose gradient takes a given time without using the processor, so that a few cores act as many machines.

L(w) = sum_p |w_p - c_np|^2 / 2 over the parts p of the vector, c_n noise named by the minibatch: SGD moves around 0. A
third of the time passes in the forward pass, the rest part by part in the backward pass, so that work can overlap with
backward.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.scaling import Fixed
from murmur.engine.task import Loss, Score, Task
from murmur.engine.trainer import Trainer
from murmur.worlds.process.environment import Place
from murmur.worlds.process.world import ProcessWorld


class Pass(torch.autograd.Function):
    """The identity, with a delay in the backward pass."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return w.view_as(w)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradients[0], None


class Parts(nn.Module):
    """The vector in parts."""

    def __init__(self, numel: int, parts: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList([torch.zeros(numel // parts) for _ in range(parts)])

    def forward(self, minibatch: tuple[Tensor, float]) -> Tensor:
        c, seconds = minibatch
        loss = c.new_zeros(())
        for w, c_p in zip(self.parts, c.chunk(len(self.parts)), strict=True):
            time.sleep(seconds / 3 / len(self.parts))
            loss = loss + (Pass.apply(w, seconds * 2 / 3 / len(self.parts)) - c_p).square().sum() / 2  # type: ignore[no-untyped-call]
        return loss


@dataclass(frozen=True)
class Paced:
    """A gradient of `numel` elements (a multiple of `parts`) in `seconds`, times `slowness` on this learner."""

    seconds: float
    numel: int
    parts: int = 8
    slowness: float = field(default=1.0, repr=False)  # not part of what all learners must have alike
    per_epoch: int = 1_000_000
    samples_per_epoch: float = 1e6

    @cached_property
    def noise(self) -> Tensor:
        return torch.randn(2 * self.numel, generator=torch.Generator().manual_seed(1))

    def prepare(self) -> None:
        pass

    def model(self) -> nn.Module:
        return Parts(self.numel, self.parts)

    def minibatch(self, n: int) -> tuple[Tensor, float]:
        start = n * 7919 % self.numel
        return self.noise[start : start + self.numel], self.seconds * self.slowness

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, float]) -> Loss:
        return Loss(model(minibatch), 1.0)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return {}

    def test(self, model: nn.Module) -> Score:
        return Score()


@dataclass
class Ran:
    """One learner's side of a run; all times on the machine's one monotonic clock.

    Attributes:
        steps: time of each step.
        staleness: staleness of each step.
        ended: time at which the run ended for this learner.
        cpu: processor seconds that all its threads had used at each step.
    """

    steps: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    ended: float = 0.0
    cpu: list[float] = field(default_factory=list)

    def note(self, record: Record) -> None:
        if record.kind == "step":
            self.steps.append(time.monotonic())
            self.staleness.append(record.staleness)
            self.cpu.append(cpu_seconds())

    @property
    def seconds_per_step(self) -> float:
        """Mean seconds per step, without the first two, which fill the pipes."""
        return (self.steps[-1] - self.steps[2]) / (len(self.steps) - 3)

    @property
    def cpu_seconds_per_step(self) -> float:
        """Mean processor seconds per step, without the first two."""
        return (self.cpu[-1] - self.cpu[2]) / (len(self.cpu) - 3)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Others:
    """Computation by other processes of this machine from now on; Linux.

    Args:
        own: processes that do not count as others, besides this one.
    """

    def __init__(self, own: Sequence[int]) -> None:
        self.own = [os.getpid(), *own]
        self.began, self.before = time.monotonic(), self._used()

    @property
    def cores(self) -> float:
        """Mean number of cores kept busy by others, without kernel time on their behalf."""
        return (self._used() - self.before) / (time.monotonic() - self.began)

    def _used(self) -> float:
        user, nice = Path("/proc/stat").read_text().split()[1:3]
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.own]
        return (int(user) + int(nice) - sum(int(stat[11]) for stat in stats)) / os.sysconf("SC_CLK_TCK")


def train(place: Place, task: Task, strategy: Strategy, minibatches: int, rate: float = 0.05) -> Ran:
    """Train in the world of processes with every step timed."""
    ran = Ran()
    experiment = Experiment(task, strategy, Budget(minibatches=minibatches), SGD(rate), scaling=Fixed())
    Trainer(experiment, ProcessWorld(place, timeout_seconds=120), observers=lambda _: (ran.note,)).fit()
    ran.ended = time.monotonic()
    return ran
