"""Problem whose weights count the steps made of each minibatch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from murmur.core.learner import Strategy
from murmur.engine.task import Loss, Score
from murmur.strategies import ASGD, Downpour
from tests.support.tasks import Point

BUDGET, LEARNERS = 60, 4


class CutOff(Exception):
    """Error that ends a run in the middle."""


@dataclass(frozen=True)
class Tally:
    """Task with the gradient -e_n for minibatch n: with a rate of 1 the weights count its steps."""

    size: int = BUDGET
    per_epoch: int = 12
    cut: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def samples_per_epoch(self) -> float:
        return float(self.per_epoch)

    def prepare(self) -> None:
        pass

    def model(self) -> nn.Module:
        return Point(self.size)

    def minibatch(self, n: int) -> int:
        return n

    def loss(self, model: nn.Module, minibatch: int) -> Loss:
        self.cut["left"] -= 1  # type: ignore[index]
        if self.cut["left"] < 0:
            raise CutOff
        assert isinstance(model, Point)
        return Loss(-model.w[minibatch], 1.0)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return {"loss": float(model.w.sum())}  # type: ignore[operator]

    def test(self, model: nn.Module) -> Score:
        return Score()


def alone(k: int, view: Any, rank: int) -> dict[int, float]:
    """Mixing without neighbours, so that a learner's weights show its own steps."""
    return {rank: 1.0}


def expected(strategy: Strategy) -> torch.Tensor:
    """Return the consensus if every minibatch has become a step once."""
    if isinstance(strategy, ASGD | Downpour):
        return torch.ones(BUDGET, dtype=torch.float64)
    return torch.full((BUDGET,), 1 / LEARNERS, dtype=torch.float64)  # super-learners: half a gradient, of half as many
