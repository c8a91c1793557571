"""NoLoCo: many local steps, then a step of momentum with one random partner in place of a mean of all learners.

    theta_i      <-  phi_i, then K local steps
    Delta_i      <-  theta_i - phi_i
    delta_i      <-  alpha delta_i + beta mean(Delta) - gamma (phi_i - mean(phi))      means of i and its partner alone
    phi_i        <-  phi_i + delta_i

gamma draws the learners together. In a pair it takes one vector each, u = beta Delta + gamma phi: delta_i <- alpha
delta_i + mean(u) - gamma phi_i. All learners draw the same random pairs in a round, without a message. Kolehmainen et
al. 2025 (arXiv 2506.10911); signs, K = 50, alpha = 0.5 and beta = gamma = 0.7 are those of the authors' code, as the
paper itself could not be read in full. They send two vectors, and refuse odd numbers of learners; here one learner,
another one each time, takes its step alone.

Without gradients all differences decay in mean square, for any number of learners, where 0 < gamma < 2 (1 - alpha^2);
the paper's own range is not known here. gamma = 0 lets learners drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from murmur.core.facts import Form, Planner, mixing_vectors
from murmur.core.flat import is_finite
from murmur.core.learner import Learner
from murmur.core.mixing import random_pairs

PHI, DELTA, TURN = "phi", "delta", "turn"  # names among the vectors of a checkpoint


@dataclass(frozen=True)
class NoLoCo:
    """Local steps and an outer step of momentum with one random partner.

    Attributes:
        K: Steps of a learner between two outer steps.
        alpha: Outer momentum.
        beta: Outer rate.
        gamma: Pull towards the partner.

    Raises:
        ValueError: A number is out of its range.
    """

    lock_step: ClassVar[bool] = True
    ends_equal: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    staleness: ClassVar[int | None] = 0
    K: int = 32
    alpha: float = 0.5
    beta: float = 0.7
    gamma: float = 0.7

    def __post_init__(self) -> None:
        if self.K < 1 or not 0 <= self.alpha < 1 or not self.beta > 0:
            raise ValueError(f"NoLoCo needs K >= 1, 0 <= alpha < 1 and beta > 0, got {self}")
        if not 0 <= self.gamma < 2 * (1 - self.alpha**2):
            raise ValueError(f"NoLoCo needs 0 <= gamma < 2 (1 - alpha^2): learners would come apart, got {self}")

    async def __call__(self, me: Learner) -> None:
        phi = me.outer.setdefault(PHI, me.weights.snapshot())
        me.outer.setdefault(DELTA, torch.zeros_like(phi))
        turn = int(me.outer.setdefault(TURN, torch.zeros(1, dtype=torch.int64)))
        async for g in me.turns():
            if me.fresh_samples > 0:
                me.descend(g)
            turn += 1
            if turn % self.K == 0:
                await self.step(me, turn // self.K - 1)
            me.outer[TURN] = torch.tensor([turn])
        if turn % self.K:
            await self.step(me, turn // self.K)
            me.outer[TURN] = torch.tensor([turn + self.K - turn % self.K])  # a run that goes on begins a new round
        me.outer[PHI] = await me.group.plain.mean(me.outer[PHI])
        me.weights.set_(me.outer[PHI])

    async def step(self, me: Learner, k: int) -> None:
        """Take the outer step of round k. Weights that are not finite give way to the partner's, or to phi."""
        phi = me.outer[PHI]
        u = (me.weights.snapshot() - phi).mul_(self.beta).add_(phi, alpha=self.gamma)
        mixed = await me.group.mix(u, random_pairs(k, range(me.group.size), me.group.rank))
        delta = self.alpha * me.outer[DELTA]
        if is_finite(mixed):
            delta.add_(mixed).sub_(phi, alpha=self.gamma)
        me.outer[PHI], me.outer[DELTA] = phi + delta, delta
        me.weights.set_(me.outer[PHI])

    @property
    def sets_weights_every(self) -> float:
        return self.K

    def vectors_sent(self, learners: int, samples: float) -> float:  # noqa: ARG002 - the same for all minibatches
        return mixing_vectors(random_pairs, learners) / self.K

    def planned(self, planner: Planner) -> Form:
        return planner.mixed(random_pairs, self.K, vectors=7)
