"""Synchronous SGD: all learners take the step of one large minibatch together.

    w <- w - alpha g,     g = sum_i n_i g_i(w) / sum_i n_i     (n_i: samples of learner i's minibatch)

The sum over learners overlaps the backward pass if the world supports it; the result is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from murmur.core.facts import Form, Planner, allreduce_vectors
from murmur.core.learner import Learner


@dataclass(frozen=True)
class SyncSGD:
    """Synchronous SGD: L learners equal one with the L-fold minibatch, even if minibatches differ in samples."""

    lock_step: ClassVar[bool] = True
    bitwise_alone: ClassVar[bool] = True
    ends_equal: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    staleness: ClassVar[int | None] = 0
    sets_weights_every: ClassVar[float | None] = 1
    gradients_a_step: ClassVar[int | None] = None

    async def __call__(self, me: Learner) -> None:
        async for g in me.gradients(mean_over=me.group):
            me.descend(g)

    def vectors_sent(self, learners: int, samples: float) -> float:  # noqa: ARG002 - the same for all minibatches
        return allreduce_vectors(learners)

    def planned(self, planner: Planner) -> Form:
        return planner.synchronous(vectors=3)
