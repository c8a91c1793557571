"""Strategies of blocks of K steps, and the moments of the local optimizers between blocks: kept, averaged, moved on.

    local      x_i stays
    averaged   x_i <- sum_j n_j x_j / sum_j n_j           with the weights, after each block
    at_outer   x_i <- d^(b K) x(t) + (1 - d^(b K)) E      the mean, moved on by the length b of the outer step

x: a moment with decay d per step; E: its gradient statistics in the block (`Moments.moved_on`). At b = 1 the last two
are equal. Chen, Ding & Huo, ICASSP 2020 (BMUF-Adam); DES-LOC (arXiv 2505.22549) for the mean. With Adam the mean
triples the traffic.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from murmur.core.facts import Form, Planner, allreduce_vectors
from murmur.core.learner import Learner
from murmur.core.moments import WeightsAndMoments

MeanMoments = Literal["local", "averaged"]
OuterMoments = Literal["local", "averaged", "at_outer"]
MOMENTS_OF_ADAM = 2  # vectors of the model's length; traffic is declared for Adam
KEPT = "moments"  # name of the moments of a block's start among the strategy's vectors


def check(moments: str, outer: tuple[str, ...] = ("local", "averaged", "at_outer")) -> None:
    """Raise ValueError if there is no way of this name."""
    if moments not in outer:
        raise ValueError(f"moments must be one of {', '.join(outer)}, got {moments!r}")


def vectors(moments: str) -> int:
    return 1 if moments == "local" else 1 + MOMENTS_OF_ADAM


def memory(moments: str) -> int:
    """Return the vectors in memory for moments: in what is given to a mean, in the mean, and as kept between blocks."""
    return 3 * (vectors(moments) - 1)


class WithMoments:
    """A strategy whose field `moments` says what it does with the moments of the optimizers."""

    moments: str

    @property
    def repeatable_steps(self) -> bool:
        return self.moments == "local"


class Blocks(WithMoments):
    """A lock-step strategy of blocks: K local steps of every learner, then an exchange of all of them."""

    lock_step: ClassVar[bool] = True
    tolerates_loss: ClassVar[bool] = True
    accepts_new_learners: ClassVar[bool] = True
    ends_equal: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    staleness: ClassVar[int | None] = 0
    in_memory: ClassVar[int]  # vectors of the model's length in a learner's memory, with local moments
    K: int

    @property
    def sets_weights_every(self) -> float:
        return self.K

    def vectors_sent(self, learners: int, samples: float) -> float:  # noqa: ARG002 - the same for all minibatches
        return vectors(self.moments) * allreduce_vectors(learners) / self.K

    def planned(self, planner: Planner) -> Form:
        sent = vectors(self.moments)
        return planner.every(self.K, vectors=self.in_memory + memory(self.moments), sent=sent)


def latest_rate(me: Learner) -> float:
    """Return the rate of a learner's latest step; 0 before the first, when it has no weight in a mean."""
    return 0.0 if math.isnan(me.progress.rate) else me.progress.rate


class BlockMoments:
    """Moments of a learner in a strategy of blocks.

    A late learner takes them over with the strategy's vectors, in which a checkpoint holds them too.

    Args:
        me: Learner.
        moments: Way: local, averaged or at_outer.
        K: Steps of a block.
    """

    def __init__(self, me: Learner, moments: str, K: int) -> None:
        self.me, self.way, self.K = me, moments, K
        self.before = torch.empty(0)
        if moments != "local":
            self.before = me.outer.setdefault(KEPT, me.moments.snapshot())
            me.moments.set_(self.before)
            WeightsAndMoments(me.weights, me.moments).declare_to(me.group)

    async def mean(self, *further: Tensor) -> Tensor:
        """Return the mean of [w_i; further] over all learners, weighted by samples; set the moments to their mean.

        `further` are a few numbers. They are averaged in full precision where the weights are compressed.
        """
        me = self.me
        if further and me.group.plain is not me.group:
            numbers = await me.group.plain.mean(torch.cat(further), weight=me.fresh_samples)
            return torch.cat([await self.mean(), numbers])
        room = None
        if self.way == "local" and not further:
            room = me.group.room(me.weights.layout.numel, me.weights.layout.dtype)
        own = torch.cat([me.weights.snapshot(), *further]) if further else me.weights.snapshot(room)
        if self.way == "local":
            return await me.group.mean(own, weight=me.fresh_samples)
        mean = await me.group.mean(torch.cat([own, me.moments.snapshot()]), weight=me.fresh_samples)
        self.before = me.outer[KEPT]
        self._set(mean[own.numel() :].clone())
        return mean[: own.numel()]

    def move_on(self, blocks: float) -> None:
        """Let the moments follow an outer step of the length of `blocks` mean changes."""
        if self.way == "at_outer":
            self._set(self.me.moments.moved_on(self.before, self.me.outer[KEPT], self.K, blocks))

    def _set(self, moments: Tensor) -> None:
        self.me.moments.set_(moments)
        self.me.outer[KEPT] = moments
