"""DiLoCo: many local steps, then a step of Nesterov's momentum with the mean change as its gradient.

    D(t)    = x(t) - mean_i w_i                after K local steps of every learner from x(t), weighted by samples
    v(t+1)  = mu v(t) + D(t)
    x(t+1)  = x(t) - rate (D(t) + mu v(t+1))

Douillard et al. 2023 (arXiv 2311.08105): inner AdamW, K = 500, outer rate 0.7, mu = 0.9, for language models. mu = 0,
rate = 1 is plain averaging. The local optimizers keep their state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from murmur.core.learner import Learner
from murmur.strategies.block_moments import BlockMoments, Blocks, OuterMoments, check


@dataclass(frozen=True)
class DiLoCo(Blocks):
    """Local steps and an outer step of Nesterov's momentum.

    Attributes:
        K: Steps of a learner between two outer steps.
        rate: Outer rate.
        mu: Outer momentum.
        moments: Moments of the local optimizers between blocks (`block_moments`): local, averaged, at_outer.
    """

    in_memory: ClassVar[int] = 5
    K: int = 32
    rate: float = 0.7
    mu: float = 0.9
    moments: OuterMoments = "local"

    def __post_init__(self) -> None:
        if self.K < 1 or not self.rate > 0 or not 0 <= self.mu < 1:
            raise ValueError(f"DiLoCo needs K >= 1, rate > 0 and 0 <= mu < 1, got {self}")
        check(self.moments)

    async def __call__(self, me: Learner) -> None:
        x, step = me.weights.snapshot(), me.weights.layout.empty()
        v = me.outer.setdefault("v", x.new_zeros(x.shape))
        moments, blocks = BlockMoments(me, self.moments, self.K), me.outer.setdefault("blocks in v", x.new_zeros(1))
        while me.training:
            async for g in me.gradients(at_most=self.K):
                me.descend(g)
            mean = await moments.mean()
            if me.training:
                change = torch.sub(x, mean, out=mean)
                v.mul_(self.mu).add_(change)
                x.sub_(torch.mul(v, self.mu, out=step).add_(change).mul_(self.rate))
                me.weights.set_(x)
                blocks.mul_(self.mu).add_(1)
                moments.move_on(self.rate * (1 + self.mu * blocks.item()))
