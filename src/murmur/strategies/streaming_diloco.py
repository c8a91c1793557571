"""Streaming DiLoCo: DiLoCo in fragments, one after the other, whose means are computed beside the next local steps.

    turn t_p + n K:          begin        m_p = mean_i w_ip        t_p = floor(K (p + 1) / F),  weighted by samples
    turn t_p + n K + tau:    D_p  <-  x_p - m_p
                             v_p  <-  mu v_p + D_p
                             x_p  <-  x_p - rate (D_p + mu v_p)
                             w_ip <-  alpha w_ip + (1 - alpha) x_p

w_ip: fragment p = 0 .. F - 1 of learner i's weights (`parts_of`); x: outer weights, the same on all learners. Each
fragment is exchanged once in K turns, so that DiLoCo's traffic is spread over time, and tau turns hide an exchange.
After the last minibatch the turns go on, without gradients, until every fragment has had its mean; then w_i <- x.
Douillard et al. 2025 (arXiv 2501.18512): H = 100 for K, alpha = 1/2, fragments of whole layers, exchanged in four bits;
here fragments are equal parts of the vector, and `Compressed` takes fewer bits. F = 1, tau = 0, alpha = 0 is `DiLoCo`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from murmur.core.facts import Form, Planner, allreduce_vectors
from murmur.core.flat import is_finite
from murmur.core.learner import Learner
from murmur.strategies.parameter_shards import parts_of

X, V, TURN, SAMPLES = "x", "v", "turn", "samples"  # names among the vectors of a checkpoint


class Fragments:
    """One learner's outer weights x, their momentum v, and the exchange of one fragment at a time.

    Attributes:
        turn: Turns so far.
    """

    def __init__(self, me: Learner, strategy: StreamingDiLoCo) -> None:
        self._me, self._strategy = me, strategy
        self._parts = parts_of(me.weights.layout.numel, strategy.fragments)
        self._groups = [me.group.twin() for _ in self._parts]  # a compression keeps residuals for each of them
        w = me.weights.snapshot()
        me.outer.setdefault(X, w)
        me.outer.setdefault(V, w.new_zeros(w.shape))
        self.turn = int(me.outer.setdefault(TURN, torch.zeros(1, dtype=torch.int64)))
        # Samples of this learner since the latest exchange of each fragment.
        me.outer.setdefault(SAMPLES, torch.zeros(strategy.fragments, dtype=torch.float64))
        self._mean: Awaitable[Tensor] | None = None

    def count(self, turns: int, samples: float) -> None:
        self.turn += turns
        self._me.outer[TURN] = torch.tensor([self.turn])
        self._me.outer[SAMPLES] = self._me.outer[SAMPLES] + samples

    def begin(self, p: int) -> None:
        me = self._me
        me.outer.begin_exchange()
        samples = me.outer[SAMPLES].clone()
        mean = self._groups[p].mean(me.weights.snapshot()[self._parts[p]], weight=float(samples[p]))
        samples[p] = 0.0
        me.outer[SAMPLES] = samples
        self._mean = me.spawn(mean, "averaging")

    async def merge(self, p: int) -> bool:
        """Take the outer step with the mean of fragment p; return False if no learner had samples for it."""
        assert self._mean is not None
        me, s, part = self._me, self._strategy, self._parts[p]
        mean, self._mean = await self._mean, None
        me.outer.end_exchange()
        if self._groups[p].total_weight == 0:
            return False
        x, v = me.outer[X][part], me.outer[V][part]
        change = x - mean
        v.mul_(s.mu).add_(change)
        x.copy_(x - s.rate * (change + s.mu * v))
        w = me.weights.snapshot()
        w[part] = w[part].lerp(x, 1 - s.alpha) if is_finite(w[part]) else x
        me.weights.set_(w)
        return True


@dataclass(frozen=True)
class StreamingDiLoCo:
    """Outer Nesterov momentum on fragments of the weights, exchanged beside the local steps.

    Attributes:
        K: Turns between two exchanges of a fragment.
        fragments: Number of fragments F.
        tau: Turns of an exchange, at most floor(K / F); 0: learners wait for it.
        rate: Outer rate.
        mu: Outer momentum.
        alpha: Share of the local weights in the merged ones.

    Raises:
        ValueError: A number is out of its range; at the start of a run, that the model has fewer elements than
            fragments.
    """

    lock_step: ClassVar[bool] = True
    ends_equal: ClassVar[bool] = True
    staleness: ClassVar[int | None] = 0
    K: int = 32
    fragments: int = 4
    tau: int = 4
    rate: float = 0.7
    mu: float = 0.9
    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.fragments <= self.K or not 0 <= self.tau <= self.K // self.fragments:
            raise ValueError(f"StreamingDiLoCo needs 1 <= fragments <= K and 0 <= tau <= K // fragments, got {self}")
        if not self.rate > 0 or not 0 <= self.mu < 1 or not 0 <= self.alpha < 1:
            raise ValueError(f"StreamingDiLoCo needs rate > 0, 0 <= mu < 1 and 0 <= alpha < 1, got {self}")

    async def __call__(self, me: Learner) -> None:
        fragments = Fragments(me, self)
        due = self.begins_at(fragments.turn)
        if due is not None and self.tau > 0:  # the run goes on from a checkpoint made while this one was under way
            fragments.begin(due)
        more = True
        while more:
            turns = self.turns_to_event(fragments.turn)
            async for g in me.gradients(at_most=turns):
                me.descend(g)
            fragments.count(turns, me.fresh_samples)
            due = self.begins_at(fragments.turn - self.tau)
            if due is not None and self.tau > 0:
                more = await fragments.merge(due)
            begins = self.begins_at(fragments.turn) if more else None
            if begins is not None:
                fragments.begin(begins)
                more = self.tau > 0 or await fragments.merge(begins)
        me.weights.set_(me.outer[X])

    def begins_at(self, turn: int) -> int | None:
        """Return the fragment whose exchange begins after a number of turns; None if there is none."""
        at = (turn - 1) % self.K + 1
        points = [self.K * (p + 1) // self.fragments for p in range(self.fragments)]
        return points.index(at) if turn > 0 and at in points else None

    def turns_to_event(self, turn: int) -> int:
        after = turn + 1
        while self.begins_at(after) is None and self.begins_at(after - self.tau) is None:
            after += 1
        return after - turn

    @property
    def sets_weights_every(self) -> float:
        return self.K / self.fragments

    def vectors_sent(self, learners: int, samples: float) -> float:  # noqa: ARG002 - the same for all minibatches
        return allreduce_vectors(learners) / self.K

    def planned(self, planner: Planner) -> Form:
        return planner.streamed(self.K, self.fragments, self.tau, vectors=6)
