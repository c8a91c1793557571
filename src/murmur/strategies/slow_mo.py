"""SlowMo: slow momentum on K-step averages, scaled by the learning rate.

    W(t)    = mean_i w_i                       after K local steps of every learner from x(t), weighted by samples
    u(t+1)  = beta u(t) + (x(t) - W(t)) / r(t)
    x(t+1)  = x(t) - alpha r(t) u(t+1)

r(t) is the learning rate of the last local steps, averaged as the weights are, so that the momentum keeps its length
in gradients when the rate falls. Wang et al. 2020 (arXiv 1910.00643). beta = 0, alpha = 1 is plain averaging; at a
constant rate it is BMUF in its classical form with eta = beta, zeta = alpha.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from murmur.core.learner import Learner
from murmur.strategies.block_moments import BlockMoments, Blocks, OuterMoments, check, latest_rate


@dataclass(frozen=True)
class SlowMo(Blocks):
    """K-step averaging with slow momentum.

    Attributes:
        K: Steps of a learner in a block.
        beta: Slow momentum.
        alpha: Slow rate.
        moments: Moments of the local optimizers between blocks (`block_moments`): local, averaged, at_outer.
    """

    in_memory: ClassVar[int] = 5
    K: int = 8
    beta: float = 0.5
    alpha: float = 1.0
    moments: OuterMoments = "local"

    def __post_init__(self) -> None:
        if self.K < 1 or not 0 <= self.beta < 1 or not self.alpha > 0:
            raise ValueError(f"SlowMo needs K >= 1, 0 <= beta < 1 and alpha > 0, got {self}")
        check(self.moments)

    async def __call__(self, me: Learner) -> None:
        x = me.weights.snapshot()
        u = me.outer.setdefault("u", x.new_zeros(x.shape))
        moments, blocks = BlockMoments(me, self.moments, self.K), me.outer.setdefault("blocks in u", x.new_zeros(1))
        while me.training:
            async for g in me.gradients(at_most=self.K):
                me.descend(g)
            found = await moments.mean(x.new_tensor([latest_rate(me)]))
            mean, rate = found[:-1], found[-1].item()
            if me.training:
                if rate > 0:
                    u.mul_(self.beta).add_(x - mean, alpha=1 / rate)
                    x = x - self.alpha * rate * u
                    blocks.mul_(self.beta).add_(1)
                    moments.move_on(self.alpha * blocks.item())
                me.weights.set_(x)
