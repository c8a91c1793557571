"""Learners that only average: a program that gives each its own weights and gradients of zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from murmur.core.assignment import Assignment, Turns
from murmur.core.facts import Facts
from murmur.core.flat import Layout
from murmur.core.learner import Gradient, Learner, Progress, Strategy
from murmur.core.membership import NOTHING, Preparation
from murmur.core.source import WHOLE, Piece
from murmur.core.weights import Weights
from murmur.core.world import Seat
from tests.support.tasks import Point


@dataclass
class Still:
    """Source with gradients of zero; counts the minibatches handed out."""

    layout: Layout
    total: int
    times: float = 1.0
    decay_times: float = 1.0
    piece: Piece = WHOLE
    turns: Turns = field(default_factory=lambda: Turns(Assignment((0,)), 0))
    draws: list[int] = field(default_factory=list)

    @property
    def span(self) -> tuple[int, int]:
        return 0, self.total

    def next_index(self, steps: int) -> int | None:
        return steps if steps < self.total else None

    def over(self, steps: int) -> bool:
        return steps >= self.total

    @property
    def local_optimizer(self) -> Still:
        return self

    def restart(self) -> None:
        pass

    def progress_at(self, minibatches: int) -> Progress:
        return self.progress()

    def claimed(self, claim: range, steps: int) -> None:
        self.draws.extend(claim)

    @property
    def preparation(self) -> Preparation:
        return NOTHING

    def heard(self, loss: float, compute_seconds: float) -> None:
        pass

    def followed(self, staleness: int) -> None:
        pass

    def draw(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        if before_backward is not None:
            before_backward(1.0)
        return Gradient(torch.zeros(self.layout.numel, dtype=self.layout.dtype), [True], 1.0, 0.0)

    def nothing(self) -> Gradient:
        return Gradient(torch.zeros(self.layout.numel, dtype=self.layout.dtype), [True], 0.0, math.nan)

    def apply(self, g: Tensor, present: list[bool], staleness: int) -> None:
        pass

    def progress(self) -> Progress:
        return Progress(0, 0.0, 0.0, 0.0, 0.0, 1.0)

    def evaluate(self, w: Tensor) -> Mapping[str, float]:
        return {}

    async def boundary(self, me: Learner) -> None:
        pass


@dataclass(frozen=True)
class Averaging:
    """Run a strategy without gradients from the rows of `start` (L, P)."""

    strategy: Strategy
    start: Tensor
    minibatches: int
    source: type[Still] = Still

    async def __call__(self, seat: Seat) -> Learner:
        model = Point(self.start.shape[1])
        layout = Layout.trainable(model)
        layout.scatter(self.start[seat.group.rank])
        me = Learner(seat, Weights(layout), self.source(layout, self.minibatches), Facts.of(self.strategy).lock_step)
        await self.strategy(me)
        return me
