"""Gossip with periodic global averaging: neighbours average after every step, all learners after every H-th.

    W_{k+1} = (W_k - alpha G(W_k)) T_k,     T_k = (1/L) 1 1^T if H divides k + 1, else the rows of `mixing`

Chen et al. 2021 (arXiv 2105.09080). The exact mean bounds the distance of learners from the consensus where a sparse
mixing alone would not. `mixing=uniform` or H = 1 averages all learners after every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from murmur.core.facts import Form, Planner, allreduce_vectors, mixing_vectors
from murmur.core.learner import Learner
from murmur.core.mixing import Mixing, ring
from murmur.core.moments import WeightsAndMoments
from murmur.strategies.block_moments import OuterMoments, WithMoments, check, vectors


@dataclass(frozen=True)
class GossipPGA(WithMoments):
    """Averaging with neighbours after every step, and an exact mean after every H-th.

    Attributes:
        H: Steps from one exact mean to the next.
        mixing: Neighbours and weights of the other steps.
        moments: Moments of the local optimizers: "local": kept by each learner; "averaged": mixed with the weights;
            "at_outer": averaged with the weights in the exact means only.
    """

    lock_step: ClassVar[bool] = True
    bitwise_alone: ClassVar[bool] = True
    ends_equal: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    staleness: ClassVar[int | None] = 0
    sets_weights_every: ClassVar[float | None] = 1
    H: int = 8
    mixing: Mixing = ring
    moments: OuterMoments = "local"

    def __post_init__(self) -> None:
        if self.H < 1:
            raise ValueError(f"GossipPGA needs H >= 1, got {self}")
        check(self.moments)

    async def __call__(self, me: Learner) -> None:
        if self.moments == "averaged":
            WeightsAndMoments(me.weights, me.moments).declare_to(me.group)
        rounds = count(me.turns_done)
        async for g in me.turns():
            if me.fresh_samples > 0:
                me.descend(g)
            k = next(rounds)
            exact = (k + 1) % self.H == 0
            mixed = self.moments == "averaged" or (exact and self.moments == "at_outer")
            state = WeightsAndMoments(me.weights, me.moments) if mixed else me.weights
            x, row = state.snapshot(), self.mixing(k, range(me.group.size), me.group.rank)
            state.set_(await (me.group.plain.mean(x) if exact else me.group.mix(x, row)))
        me.weights.set_(await me.group.plain.mean(me.weights.snapshot()))

    def vectors_sent(self, learners: int, samples: float) -> float:  # noqa: ARG002 - the same for all minibatches
        share = 1 / self.H
        exact = vectors(self.moments) * allreduce_vectors(learners)
        return share * exact + (1 - share) * self.vectors_between * mixing_vectors(self.mixing, learners)

    def planned(self, planner: Planner) -> Form:
        return planner.in_step(self.mixing, self.H, self.vectors_between, vectors(self.moments))

    @property
    def vectors_between(self) -> int:
        """Vectors of the model's length in an exchange between two exact means."""
        return vectors("averaged" if self.moments == "averaged" else "local")
