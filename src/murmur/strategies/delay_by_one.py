"""Delay by one: the models are averaged while the gradient is computed, so that averaging takes no extra time.

    w_{k+1}^l  =  (W_k T_k)_l  -  alpha g(w_k^l)          uniform T:   (1/L) sum_j w_k^j - alpha g(w_k^l)

The gradient is taken at the learner's own weights w_k^l before averaging (staleness 1). Cui et al. 2021 (arXiv
2110.11199). With curvature h it is stable for alpha h < 1, half the bound of synchronous SGD. A learner without a
minibatch in the last turn averages without a gradient. The run ends with one exact mean.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from torch import Tensor

from murmur.core.facts import Form, Planner, mixing_vectors
from murmur.core.group import Group
from murmur.core.learner import Learner
from murmur.core.mixing import Mixing, uniform
from murmur.core.moments import WeightsAndMoments
from murmur.core.weights import Weights
from murmur.strategies.block_moments import MeanMoments, WithMoments, check, vectors


@dataclass(frozen=True)
class DelayByOne(WithMoments):
    """Averaging behind every gradient.

    Attributes:
        mixing: Neighbours and weights of a turn.
        moments: Moments of the local optimizers: "local": kept by each learner; "averaged": averaged with the weights.
    """

    lock_step: ClassVar[bool] = True
    bitwise_alone: ClassVar[bool] = True
    ends_equal: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    staleness: ClassVar[int | None] = 1
    sets_weights_every: ClassVar[float | None] = 1
    mixing: Mixing = uniform
    moments: MeanMoments = "local"

    def __post_init__(self) -> None:
        check(self.moments, ("local", "averaged"))

    async def __call__(self, me: Learner) -> None:
        beside = me.group.twin()  # averaging overlaps other exchanges
        state = self.state(me)
        if isinstance(state, WeightsAndMoments):
            state.declare_to(beside)
        rounds = count(me.turns_done)
        mixed = self.start_averaging(me, beside, rounds)
        async for g in me.turns():  # g is taken at W_k while W_k T_k is on its way
            self.state(me).set_(await mixed)
            if me.fresh_samples > 0:
                me.descend(g)
            mixed = self.start_averaging(me, beside, rounds)
        self.state(me).set_(await me.group.plain.mean(await mixed))
        me.outer.end_exchange()

    def state(self, me: Learner) -> Weights | WeightsAndMoments:
        return me.weights if self.moments == "local" else WeightsAndMoments(me.weights, me.moments)

    def start_averaging(self, me: Learner, beside: Group, rounds: Iterator[int]) -> Awaitable[Tensor]:
        """Start to compute (W_k T_k)_l while the learner goes on."""
        me.outer.begin_exchange()
        w, row = self.state(me).snapshot(), self.mixing(next(rounds), range(beside.size), beside.rank)
        # One collective in place of L - 1 messages if all learners are neighbours.
        averaging = beside.mean(w) if self.mixing is uniform else beside.mix(w, row)
        return me.spawn(averaging, "averaging")

    def vectors_sent(self, learners: int, samples: float) -> float:  # noqa: ARG002 - the same for all minibatches
        return vectors(self.moments) * mixing_vectors(self.mixing, learners)

    def planned(self, planner: Planner) -> Form:
        return planner.delayed(self.mixing, vectors(self.moments))
