"""Asynchronous decentralised parallel SGD: gradients and averaging run side by side, without waiting.

    W_{k+1} = W_k T_k - alpha g(Phi_k)

Each column of W is a learner; T_k is a round of averaging with a few neighbours; Phi_k are the (older) weights at which
the gradients were begun. Both terms are added to the live weights, so that neither erases the other. Lian et al. 2018
(arXiv 1710.06952), Zhang et al. 2019 (arXiv 1904.04956), Cui et al. 2021 (arXiv 2110.11199).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from murmur.core.facts import Form, Planner, mixing_vectors
from murmur.core.learner import Learner
from murmur.core.mixing import Mixing, ring
from murmur.strategies.block_moments import MeanMoments, WithMoments, check, vectors


@dataclass(frozen=True)
class ADPSGD(WithMoments):
    """Asynchronous averaging with neighbours.

    Attributes:
        mixing: Neighbours and weights of a round: `ring`, `randomized_ring`, `pairwise`, `exponential`.
        moments: Moments of the local optimizers: "local": kept by each learner; "averaged": exchanged and averaged with
            the weights.
    """

    lock_step: ClassVar[bool] = False
    tolerates_loss: ClassVar[bool] = True
    accepts_new_learners: ClassVar[bool] = True
    bitwise_alone: ClassVar[bool] = True
    ends_equal: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    mixing: Mixing = ring
    moments: MeanMoments = "local"

    def __post_init__(self) -> None:
        check(self.moments, ("local", "averaged"))

    async def __call__(self, me: Learner) -> None:
        if self.moments == "averaged":
            me.averager.carry(me.moments)
        averaging = me.spawn(self.average(me), "averaging")
        async for g in me.claimed_gradients():
            me.descend(g)  # w_i <- w_i - alpha g(phi_i)
        await averaging
        me.weights.set_(await me.consensus())

    async def average(self, me: Learner) -> None:
        async for k in me.rounds():  # about one per gradient
            me.gossip(self.mixing(k, me.view, me.group.rank))  # w_i <- w_i + T_ij (x_j - x_i), when x_j arrives

    def vectors_sent(self, learners: int, samples: float) -> float:  # noqa: ARG002 - the same for all minibatches
        return vectors(self.moments) * mixing_vectors(self.mixing, learners)  # for equally fast learners

    def planned(self, planner: Planner) -> Form:
        return planner.pairwise(self.mixing, sent=vectors(self.moments))
