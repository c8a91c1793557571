"""Blockwise model-update filtering: K-step averaging with momentum on the step from average to average.

    G(t)     = mean_i W_i - W_g(t-1)          after K local steps of every learner from W_g(t-1), weighted by samples
    Delta(t) = eta Delta(t-1) + zeta G(t)
    W(t)     = W(t-1) + Delta(t)
    W_g(t)   = W(t)  (classical)   or   W(t) + eta Delta(t)  (Nesterov)

Chen & Huo, ICASSP 2016. The gain zeta / (1 - eta) undoes the shrink of averaging: eta = 1 - 1/L and zeta = 1 give L.
eta = 0, zeta = 1 is plain averaging. This is the mean form; some codes sum over learners or scale by 1 - eta instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from murmur.core.learner import Learner
from murmur.strategies.block_moments import BlockMoments, Blocks, OuterMoments, check


@dataclass(frozen=True)
class BMUF(Blocks):
    """Block momentum and blocks of K steps per learner.

    Attributes:
        K: Steps of a learner in a block.
        eta: Block momentum; None: 1 - 1 / G, where G is the growth of the minibatch of a turn (`Progress.growth`), so
            that L learners with whole minibatches have 1 - 1 / L.
        zeta: Block rate.
        nesterov: True for Nesterov's form.
        moments: Moments of the local optimizers between blocks (`block_moments`): local, averaged, at_outer (BMUF-Adam,
            Chen, Ding & Huo, ICASSP 2020).
    """

    in_memory: ClassVar[int] = 6
    follows_growth: ClassVar[bool] = True  # by its gain
    K: int = 8
    eta: float | None = None
    zeta: float = 1.0
    nesterov: bool = True
    moments: OuterMoments = "local"

    def __post_init__(self) -> None:
        if self.K < 1 or not (self.eta is None or 0 <= self.eta < 1) or not self.zeta > 0:
            raise ValueError(f"BMUF needs K >= 1, 0 <= eta < 1 and zeta > 0, got {self}")
        check(self.moments)

    async def __call__(self, me: Learner) -> None:
        W = me.outer.setdefault("W", me.weights.snapshot())
        W_g, delta = me.weights.snapshot(), me.outer.setdefault("Delta", W.new_zeros(W.shape))
        moments, blocks = BlockMoments(me, self.moments, self.K), me.outer.setdefault("blocks", W.new_zeros(1))
        while me.training:
            async for g in me.gradients(at_most=self.K):
                me.descend(g)
            mean = await moments.mean()
            if me.training:
                eta = 1 - 1 / max(1.0, me.progress.growth) if self.eta is None else self.eta
                delta.mul_(eta).add_(mean.sub_(W_g), alpha=self.zeta)
                W.add_(delta)
                W_g = torch.mul(delta, eta, out=W_g).add_(W) if self.nesterov else W_g.copy_(W)
                me.weights.set_(W_g)
                before = blocks.item()
                now = blocks.mul_(eta).add_(self.zeta).item()
                moments.move_on(now + eta * (now - before) if self.nesterov else now)
