"""Small problems with known gradients, and the plain loops for comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from murmur.core.flat import Layout
from murmur.core.world import World
from murmur.engine.experiment import Experiment
from murmur.engine.task import Loss, Score, seed_of
from murmur.engine.trainer import Trainer
from murmur.tasks.toy import ToyTask
from murmur.worlds.process.environment import Place
from murmur.worlds.process.torch_store import connect
from murmur.worlds.process.world import ProcessWorld


class Point(nn.Module):
    """Model that consists of its weights."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))


@dataclass(frozen=True)
class Quadratic:
    """Task with loss 1/2 h (w - c_n)^2 per sample of minibatch n, so that g_n(w) = h (w - c_n)."""

    size: int = 5
    per_epoch: int = 1000
    ragged: bool = False
    curvature: float = 1.0

    @property
    def samples_per_epoch(self) -> float:
        return 2.0 * self.per_epoch  # ragged or not, on average

    def prepare(self) -> None:
        pass

    def model(self) -> nn.Module:
        return Point(self.size)

    def weight(self, n: int) -> float:
        return float(1 + n % 3) if self.ragged else 2.0

    def centre(self, n: int) -> Tensor:
        draw = torch.Generator().manual_seed(seed_of("centre", n))
        return torch.randn(self.size, dtype=torch.float64, generator=draw)

    def minibatch(self, n: int) -> tuple[Tensor, float]:
        return self.centre(n), self.weight(n)

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, float]) -> Loss:
        centre, weight = minibatch
        assert isinstance(model, Point)
        return Loss(weight * 0.5 * self.curvature * ((model.w - centre) ** 2).sum(), weight)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, Point)
        return {"loss": float((model.w**2).sum())}

    def test(self, model: nn.Module) -> Score:
        return Score(self.evaluate(model))


def weights_of(model: nn.Module) -> Tensor:
    return Layout.trainable(model).gather()


@dataclass(frozen=True)
class Looked(Quadratic):
    """Quadratic that records each model's minibatches, and the weights at which their gradients were taken."""

    by: dict[nn.Module, list[tuple[int, Tensor]]] = field(default_factory=dict, compare=False, repr=False)

    def minibatch(self, n: int) -> tuple[Tensor, float, int]:  # type: ignore[override]
        return *super().minibatch(n), n

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, float, int]) -> Loss:  # type: ignore[override]
        self.by.setdefault(model, []).append((minibatch[2], weights_of(model)))
        return super().loss(model, minibatch[:2])


class Steps(Quadratic):
    """Gradients that do not depend on the weights: -c_n."""

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, float]) -> Loss:
        centre, weight = minibatch
        assert isinstance(model, Point)
        return Loss(-weight * (model.w * centre).sum(), weight)


@dataclass(frozen=True)
class Counted:
    """Task with the gradient -e_n for minibatch n; `taken` counts the computations."""

    size: int
    taken: Counter[int] = field(default_factory=Counter, compare=False)
    per_epoch: int = 20
    samples_per_epoch: float = 20.0

    def prepare(self) -> None:
        pass

    def model(self) -> nn.Module:
        return Point(self.size)

    def minibatch(self, n: int) -> int:
        return n

    def loss(self, model: nn.Module, minibatch: int) -> Loss:
        assert isinstance(model, Point)
        self.taken[minibatch] += 1
        return Loss(-model.w[minibatch], 1.0)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return {"loss": -float(model.w.sum())}  # type: ignore[operator]

    def test(self, model: nn.Module) -> Score:
        return Score()


def fit(experiment: Experiment, world: World) -> Tensor:
    """Return the consensus weights at the end of an experiment."""
    return weights_of(Trainer(experiment, world).fit().model)


def fit_in_process(place: Place, experiment: Experiment, threads: int = 1) -> list[float]:
    """Train at one seat of a world of processes, in the pool; return the weights as plain numbers."""
    torch.set_num_threads(threads)
    world = ProcessWorld(place, timeout_seconds=20, store=connect(place, 20))
    weights: list[float] = fit(experiment, world).tolist()
    return weights


@dataclass(frozen=True)
class OddToy(ToyTask):
    """Toy with all difficulties of naive averaging: a frozen part, an unused one, an often absent one."""

    def model(self) -> nn.Module:
        return Odd(self.hidden)


class Odd(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(64, hidden)
        self.frozen = nn.Linear(hidden, hidden)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.sometimes = nn.Linear(hidden, 10)
        self.outer = nn.Linear(hidden, 10)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(torch.relu(self.frozen(torch.relu(self.inner(x)))))
        return self.outer(h) + self.sometimes(h) if x[0, 0] > 0 else self.outer(h)


@dataclass(frozen=True)
class Groups:
    """Optimizer with several parameter groups; one of them has momentum and weight decay."""

    lr: float = 0.05

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        params = [p for p in model.parameters() if p.requires_grad]
        first, second = params[: len(params) // 2], params[len(params) // 2 :]
        return torch.optim.SGD(
            [{"params": first, "lr": self.lr * 2}, {"params": second, "momentum": 0.9, "weight_decay": 0.01}],
            lr=self.lr,
        )
