"""Mean gradients: the mean over a group of the gradients that its members draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Any

import torch
from torch import Tensor

from murmur.core.group import Group
from murmur.core.overlapped_mean import MeanBehindBackward
from murmur.core.source import Gradient, Source
from murmur.core.weights import Weights
from murmur.core.world import Seat

Draw = Callable[[Callable[[float], None] | None], Coroutine[Any, Any, Gradient | None]]


class MeanGradients:
    """One learner's side of mean gradients; all learners of the group have the same weights.

    If the weights of a member are not finite, the mean tells all members. They go on from the mean of the finite
    weights, and every local optimizer is reset, so that the weights stay the same bits.
    """

    def __init__(self, seat: Seat, weights: Weights, source: Source) -> None:
        self.seat, self.weights, self.source = seat, weights, source
        self._behind: dict[str, MeanBehindBackward] = {}

    async def over(self, group: Group, draw: Draw) -> Gradient:
        """Return the mean of the gradients that members of a group draw, weighted by samples (0 if there were none)."""
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
            *there, broken = (flag > 0 for flag in both[drawn.g.numel() :].tolist())
            g, present = both[: drawn.g.numel()], there
            if group.plain is not group:
                self._clear_absent(g, present)
        if broken:
            await self._begin_anew(group)
        return Gradient(g, present, group.total_weight, math.nan if drawn is None else drawn.loss)

    def _clear_absent(self, g: Tensor, present: list[bool]) -> None:
        """Set the gradient to 0 for tensors that have none on any learner.

        What was rounded off in earlier means arrives there too, and would be a step of the optimizer.
        """
        for view, there in zip(self.weights.layout.views(g), present, strict=True):
            if not there:
                view.zero_()

    async def _begin_anew(self, group: Group) -> None:
        total = group.total_weight
        self.weights.set_(await group.mean(self.weights.layout.gather()))
        group.total_weight = total
        self.source.restart()
