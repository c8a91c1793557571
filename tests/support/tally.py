"""A problem whose weights count how often each minibatch has become a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from murmur.core.learner import Strategy
from murmur.engine.task import Loss, Score
from murmur.strategies import ASGD
from tasks import Point

BUDGET, LEARNERS = 60, 4


class CutOff(Exception):
    """What ends a run in the middle."""


@dataclass(frozen=True)
class Tally:
    """Minibatch n has the gradient -e_n: with a rate of 1 the weights count how often each has become a step."""

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
    """Nobody averages before the end, so that a learner's weights tell what it did itself."""
    return {rank: 1.0}


def expected(strategy: Strategy) -> torch.Tensor:
    """What the consensus is if every minibatch has become a step once."""
    if isinstance(strategy, ASGD):
        return torch.ones(BUDGET, dtype=torch.float64)
    return torch.full((BUDGET,), 1 / LEARNERS, dtype=torch.float64)  # of nodes too: half a gradient, of half as many
