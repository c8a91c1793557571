"""Gradients that one learner computes at its live weights, and the steps that it takes with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from murmur.core.gradient_fields import GradientInFields
from murmur.core.group import Group
from murmur.core.mean_gradient import MeanBehindBackward
from murmur.core.membership import Preparation
from murmur.core.moments import Moments
from murmur.core.pairwise import PairwiseAverager
from murmur.core.source import Gradient, PendingGradient, Source
from murmur.core.weights import Weights
from murmur.core.world import Seat

Draw = Callable[[Callable[[float], None] | None], Coroutine[Any, Any, Gradient | None]]


class LocalSteps:
    """Gradients and steps of one learner, which may be a member of a super-learner; attributes as in `Learner`."""

    def __init__(self, seat: Seat, group: Group, weights: Weights, source: Source) -> None:
        self.seat, self.group, self.weights, self.source = seat, group, weights, source
        seat.holds(weights)
        self.steps, self.fresh_samples = 0, 0.0
        self.beside_seconds = 0.0  # of a user loop and of steps, since the latest claimed gradient
        self._version = 0
        self._drawn: int | None = None
        self._present = [True] * len(weights.layout.tensors)
        self._behind: dict[str, MeanBehindBackward] = {}
        self._averager: PairwiseAverager | None = None
        self._joining = RLock()

    @property
    def averager(self) -> PairwiseAverager:
        with self._joining:  # the first uses, of gradients and of averaging, may come from two threads at once
            if self._averager is None:
                self._averager = PairwiseAverager(self.group, self.weights, lambda: self.seat.now)
                self._averager.behind = self.seat.late
            return self._averager

    @property
    def age(self) -> int:
        """Number of changes of w_i since its latest gradient was begun."""
        return self.weights.version - self._version

    @property
    def moments(self) -> Moments:
        return self.source.local_optimizer.moments

    @property
    def preparation(self) -> Preparation:
        return self.source.preparation

    async def draw(self, before_backward: Callable[[float], None] | None) -> Gradient | None:
        """Compute the gradient of this learner's minibatch of the turn; None if it has none."""
        await self.seat.ready(self.weights, self.group, before_backward)
        n = self._drawn = self.source.next_index(self.steps)
        self.steps += 1
        if n is None:
            self._version = self.weights.version  # the others take their gradients of this turn at the same weights
            return None
        return await self.compute(n, before_backward)

    async def draw_again(self, before_backward: Callable[[float], None] | None) -> Gradient | None:
        """Compute another gradient of the minibatch of `draw`, at the present weights; None if there was none."""
        return None if self._drawn is None else await self.compute(self._drawn, before_backward)

    async def of_claim(self, claim: range) -> Gradient:
        return await self.compute(self.source.turns.assignment.at(claim.start), None)

    async def compute(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        """Compute the gradient of minibatch n at the present weights, unaffected by changes that land meanwhile."""
        await self.seat.ready(self.weights, self.group, before_backward)
        self.seat.begin()
        pending = PendingGradient(self.source, n, self.weights, before_backward)
        gradient = await self.seat.work(pending)
        self._version = pending.version
        self.fresh_samples += gradient.samples
        self._present = gradient.present
        return gradient

    async def of_turn(self) -> Tensor | None:
        """Return the gradient of this learner's turn, or None if it has no minibatch left."""
        drawn = await self.draw(None)
        return None if drawn is None else drawn.g

    async def mean_of_turn(self, group: Group) -> Tensor | None:
        """Return the mean of the gradients of a group's members in this turn, or None when no member has samples."""
        self.fresh_samples = 0.0
        if group.size == 1:
            g = await self.of_turn()
            group.total_weight = self.fresh_samples
            return g
        mean = await self.averaged(group, self.draw)
        self._present = mean.present
        return mean.g if group.total_weight > 0 else None

    async def averaged(self, group: Group, draw: Draw) -> Gradient:
        """Return the mean of the gradients that members of a group draw, weighted by samples (0 if there were none).

        All of them have the same weights. If those of a member are not finite, the mean tells all: they go on from the
        mean of the finite weights, and every local optimizer is reset, so that the weights stay the same bits.
        """
        if self.seat.overlaps and group.adds_beside:
            behind = self._behind.get(group.name)
            if behind is None:
                behind = self._behind[group.name] = MeanBehindBackward(self.weights.layout, group)
            drawn = await draw(behind.start)
            if drawn is None:
                behind.start(0.0)
            g, present = await behind.finish(drawn is not None and drawn.broken)
            broken = behind.broken
        else:
            drawn = await draw(None) or self.source.nothing()
            flags = drawn.g.new_tensor([*map(float, drawn.present), float(drawn.broken)])
            # Rounded flags would make tensors present that have no gradient, and hide a broken learner.
            group.declare_sections((drawn.g.numel(),), flags.numel())
            mean = group.mean_behind if group.adds_beside else group.mean
            both = await mean(torch.cat([drawn.g, flags]), drawn.samples)
            *present, broken = (flag > 0 for flag in both[drawn.g.numel() :].tolist())
            g = both[: drawn.g.numel()]
            if group.plain is not group:  # what was rounded off in earlier means arrives where no learner has any
                self._clear_absent(g, present)
        total = group.total_weight
        if broken:
            self.weights.set_(await group.mean(self.weights.layout.gather()))
            group.total_weight = total
            self.source.local_optimizer.restart()
        return Gradient(g, present, total, math.nan if drawn is None else drawn.loss)

    def _clear_absent(self, g: Tensor, present: Sequence[bool]) -> None:
        for view, there in zip(self.weights.layout.views(g), present, strict=True):
            if not there:
                view.zero_()

    def usable(self, drawn: Gradient | None) -> Tensor:
        """Return a drawn gradient, or that of no samples in place of None, for the next step."""
        drawn = drawn or self.source.nothing()
        self._present = drawn.present
        return drawn.g

    def credit(self, claim: range, loss: float, compute_seconds: float) -> list[int]:
        """Count another learner's gradient of a claim as the one of the next step; return its minibatches."""
        self.steps += 1
        self.source.claimed(claim, self.steps)
        self.source.heard(loss, compute_seconds)
        self._present = [False] * len(self._present)  # a tensor counts as present if its part of g is not zero
        return [self.source.turns.assignment.at(position) for position in claim]

    def assign(self, done: int, to: Sequence[int]) -> None:
        self.source.turns.assignment = self.source.turns.assignment.anew(self.steps, done, to)

    def descend(self, g: Tensor, staleness: int | None) -> None:
        """Take the local optimizer's step for g. A tensor without a gradient whose part of g is zero is left alone.

        Args:
            g: Gradient, shape (P,).
            staleness: Recorded staleness; None: the age of the gradient.
        """
        staleness = self.age if staleness is None else staleness
        present = self._present
        if not all(present) and not (isinstance(g, GradientInFields) and g.unread):
            views = self.weights.layout.views(g)
            present = [there or bool(view.any()) for there, view in zip(present, views, strict=True)]
        began = self.seat.now
        self.weights.step(lambda: self.source.apply(g, present, staleness))
        self.beside_seconds += self.seat.now - began

    def repeat(self, mean: Gradient) -> None:
        """Take the step that another learner with the same weights has taken, with the mean gradient of both."""
        self._present = mean.present
        self.descend(mean.g, None)

    def restart(self) -> None:
        self.source.local_optimizer.restart()
