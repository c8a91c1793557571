"""Asynchronous averaging with quasi-global momentum: momentum of all changes of the weights, averaging included.

    m    <-  mu m + (1 - mu) (w' - w) / r       w', w: weights before the latest step, and now; r: rate of that step
    w_i  <-  w_i - r (g_i + beta m)             beside ADPSGD's rounds of averaging

Neighbours' steps reach m with their weights, so that m follows the direction of all learners where the momentum of a
local optimizer follows that of one. The local optimizer must be plain SGD: r m is a change of weights. One learner has
SGD with momentum: in the mean m = g / (1 - beta). Lin et al. 2021 (arXiv 2102.04761), QG-DSGDm, where learners go in
step; mu = beta = 0.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from murmur.core.facts import Form, Planner, mixing_vectors
from murmur.core.flat import is_finite
from murmur.core.learner import Learner
from murmur.core.mixing import Mixing, ring
from murmur.strategies.adpsgd import ADPSGD


@dataclass(frozen=True)
class QuasiGlobal:
    """Asynchronous averaging with neighbours and quasi-global momentum.

    Attributes:
        mixing: Neighbours and weights of a round, as in `ADPSGD`.
        beta: Share of the momentum in a step.
        mu: Decay of the momentum.

    A warning tells of an optimizer with moments of its own, unless `beta` is 0: training may diverge.

    Raises:
        ValueError: `beta` or `mu` is not in [0, 1).
    """

    lock_step: ClassVar[bool] = False
    tolerates_loss: ClassVar[bool] = True
    accepts_new_learners: ClassVar[bool] = True
    ends_equal: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    repeatable_steps: ClassVar[bool] = False  # the momentum is added to the gradient
    mixing: Mixing = ring
    beta: float = 0.9
    mu: float = 0.9

    def __post_init__(self) -> None:
        if not (0 <= self.beta < 1 and 0 <= self.mu < 1):
            raise ValueError(f"QuasiGlobal needs 0 <= beta < 1 and 0 <= mu < 1, got {self}")

    @property
    def needs_plain_sgd(self) -> bool:
        return self.beta > 0  # at 0 it is ADPSGD

    async def __call__(self, me: Learner) -> None:
        averaging = me.spawn(ADPSGD(self.mixing).average(me), "averaging")
        w = me.outer.get("w", me.weights.snapshot())
        m = me.outer.get("m", w.new_zeros(w.shape))
        rate = me.outer["rate"].item() if "rate" in me.outer else 0.0
        async for g in me.claimed_gradients():
            before, w = w, me.weights.snapshot()
            if rate > 0 and is_finite(change := (before - w) / rate):  # m would keep a number that is none for ever
                me.outer["m"] = m = m.lerp(change, 1 - self.mu)
            # Weights that are not finite wait for the neighbours': a step would spoil the optimizer's state too.
            me.descend(g.add(m, alpha=self.beta) if is_finite(w) else g)
            rate = me.progress.rate
            me.outer["w"], me.outer["rate"] = w, torch.tensor([rate], dtype=torch.float64)
        await averaging
        me.weights.set_(await me.consensus())

    def vectors_sent(self, learners: int, samples: float) -> float:  # noqa: ARG002 - the same for all minibatches
        return mixing_vectors(self.mixing, learners)  # for equally fast learners

    def planned(self, planner: Planner) -> Form:
        return planner.pairwise(self.mixing)
