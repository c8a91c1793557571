"""Strategies on problems with known constants, in virtual time: progress of the learners, and their distance.

A program for `VirtualWorld` whose gradients are closed forms with drawn noise, so that a hundred thousand of them take
seconds. It compares theory with the strategies' own code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from murmur.core.facts import Facts
from murmur.core.flat import Layout
from murmur.core.learner import Learner, Strategy
from murmur.core.source import Gradient
from murmur.core.world import Seat
from murmur.simulation.planner.timing import Idle, NoWeights
from murmur.worlds.virtual.cluster import Cluster
from murmur.worlds.virtual.world import VirtualWorld


@dataclass(frozen=True)
class Landscape:
    """A function f(w), given by gradient and loss of its coordinates, with the starting point of the learners.

    Attributes:
        loss: f(w) of weights (..., P), summed over coordinates.
        start: w_0, shape (P,), float64.
        noise: standard deviation of a gradient's noise in every coordinate; independent normal numbers.
    """

    gradient: Callable[[Tensor], Tensor]
    loss: Callable[[Tensor], Tensor]
    start: Tensor
    noise: float

    @property
    def variance(self) -> float:
        """sigma^2 = E |n|^2."""
        return self.noise**2 * self.start.numel()


def quadratic(start: Tensor, curvature: float, noise: float) -> Landscape:
    """f(w) = h |w|^2 / 2."""
    return Landscape(lambda w: curvature * w, lambda w: curvature * w.square().sum(-1) / 2, start, noise)


def cosine(start: Tensor, noise: float) -> Landscape:
    """f(w) = sum_p (1 - cos w_p): not convex, |f''| <= 1, min f = 0."""
    return Landscape(torch.sin, lambda w: (1 - torch.cos(w)).sum(-1), start, noise)


@dataclass(frozen=True)
class Even:
    """Compute times of equally fast learners, `seconds` each; the first gradient takes a tenth longer.

    Rounds of averaging then fall between two steps, not at the moment of a step, where their order would be random.
    """

    seconds: float = 0.1

    def __call__(self, learner: int, step: int) -> float:  # noqa: ARG002 - all are alike
        return self.seconds * (1.1 if step == 0 else 1.0)


@dataclass(frozen=True)
class Walk:
    """Plain SGD at the rate alpha on a landscape; minibatch n of a seed has the same noise on every learner."""

    landscape: Landscape
    rate: float
    seed: int = 0


@dataclass
class Course:
    """Figures after every L gradients of L learners, which are one round if the learners are equally fast.

    Attributes:
        gradient_square: |grad f(w-bar)|^2 at the consensus.
        distance_square: mean over learners of |w_i - w-bar|^2.
        consensus_square: |w-bar|^2.
        agreement: <g_a, g> / |g|^2, the effective rate divided by the rate.
        staleness: For each gradient, the changes of the learner's weights between its beginning and its step.
        weights: Weights of all learners, (L, P).
    """

    weights: Tensor
    gradient_square: list[float] = field(default_factory=list)
    distance_square: list[float] = field(default_factory=list)
    consensus_square: list[float] = field(default_factory=list)
    agreement: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)


class CourseRow(NoWeights):
    """One learner's row of the matrix of all weights; a gradient is computed at once, its seconds pass afterwards."""

    def __init__(self, row: Tensor) -> None:
        super().__init__(Layout([row]))
        self.row = row

    def snapshot(self, out: Tensor | None = None) -> Tensor:
        return self.row.clone() if out is None else out.copy_(self.row)

    def set_(self, w: Tensor) -> None:
        self.version += 1
        self.row.copy_(w)

    def add_(self, delta: Tensor, alpha: float = 1.0) -> None:
        self.version += 1
        self.row.add_(delta, alpha=alpha)

    def pull_(self, theirs: Tensor, mine: Tensor, alpha: float) -> None:
        self.add_(theirs - mine, alpha)


class Slope(Idle):
    """Source of a landscape's gradients that records the figures of every round."""

    def __init__(self, seat: Seat, total: int, walk: Walk, course: Course) -> None:
        super().__init__(seat, total)
        self.walk, self.course = walk, course
        self.row = course.weights[seat.group.rank]
        self._draw = torch.Generator()

    def draw(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        super().draw(n, before_backward)
        named = self._draw.manual_seed(1_000_003 * self.walk.seed + n)
        noise = torch.randn(self.row.shape, dtype=self.row.dtype, generator=named)
        g = self.walk.landscape.gradient(self.row) + self.walk.landscape.noise * noise
        return Gradient(g, [], 1.0, 0.0)

    def nothing(self) -> Gradient:
        return Gradient(torch.zeros_like(self.row), [], 0.0, 0.0)

    def apply(self, g: Tensor, present: list[bool], staleness: int) -> None:
        super().apply(g, present, staleness)
        self.row.add_(g, alpha=-self.walk.rate)
        if self.recorded:
            self.course.staleness.append(staleness)
        if len(self.course.staleness) % self._group.size == 0:  # in lock-step: all have taken the step
            self.record()

    def record(self) -> None:
        """Append the figures of all learners to the course."""
        course, W = self.course, self.course.weights
        mean = W.mean(0)
        gradient = self.walk.landscape.gradient
        g, g_a = gradient(mean), gradient(W).mean(0)
        square = float(g @ g)
        course.gradient_square.append(square)
        course.distance_square.append(float((W - mean).square().sum(1).mean()))
        course.consensus_square.append(float(mean @ mean))
        course.agreement.append(float(g_a @ g) / square if square > 0 else 1.0)


def follow(strategy: Strategy, cluster: Cluster, walk: Walk, minibatches: int) -> Course:
    """Train all learners from the landscape's start, for `minibatches` of them together."""
    start = walk.landscape.start.to(torch.float64)
    course = Course(start.repeat(cluster.learners, 1))

    async def program(seat: Seat) -> None:
        weights, source = CourseRow(course.weights[seat.group.rank]), Slope(seat, minibatches, walk, course)
        await strategy(Learner(seat, weights, source, Facts.of(strategy).lock_step))

    VirtualWorld(cluster).run(program)
    return course
