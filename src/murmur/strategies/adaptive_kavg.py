"""K-step averaging with K, minibatch and rate that follow the run.

    K(t) times   w_i <- w_i - r(t) alpha g_i(w_i),        g_i: mean gradient of B(t) minibatches
    then         w_i <- sum_j n_j w_j / sum_j n_j,        F_t  = sum_j n_j F_j / sum_j n_j

F_j is learner j's mean training loss per sample in the round; it is averaged as one more element of the model, so that
all learners take the same K, B and r, to the bit. Rules and papers: `adaptive_rules`. K and B fixed, r = 1: KAVG(K).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from murmur.core.facts import allreduce_vectors
from murmur.core.learner import Learner, Progress
from murmur.core.source import SKIPPED_SAMPLES
from murmur.strategies.adaptive_rules import AdaComm, Rule, Stages, Standing
from murmur.strategies.block_moments import BlockMoments, MeanMoments, WithMoments, check, latest_rate, vectors


@dataclass(frozen=True)
class AdaptiveKAVG(WithMoments):
    """Rules for K, for B (`minibatches` a step) and for r (`rate`, a factor on the schedule's rates).

    Attributes:
        K: Rule of the steps between averages.
        minibatches: Rule of the minibatches of a step.
        rate: Rule of the factor on the rates.
        moments: As for `KAVG`.
    """

    lock_step: ClassVar[bool] = True
    tolerates_loss: ClassVar[bool] = True
    accepts_new_learners: ClassVar[bool] = True
    bitwise_alone: ClassVar[bool] = True
    ends_equal: ClassVar[bool] = True
    staleness: ClassVar[int | None] = 0
    follows_losses: ClassVar[bool] = True
    K: Rule = field(default_factory=AdaComm)
    minibatches: Rule = field(default_factory=Stages)
    rate: Rule = field(default_factory=Stages)
    moments: MeanMoments = "local"

    def __post_init__(self) -> None:
        check(self.moments, ("local", "averaged"))

    async def __call__(self, me: Learner) -> None:
        F = me.outer.setdefault("F", me.weights.snapshot().new_full((4,), math.nan))  # first loss, rate; latest ones
        moments = BlockMoments(me, self.moments, 1)
        while me.training:
            first_loss, first_rate, loss, rate = F.tolist()
            now = Standing(replace(me.reached, loss=loss, rate=rate), first_loss, first_rate)
            me.source.times = self.rate(now)
            loss = await self.steps(me, max(1, round(self.K(now))), max(1, round(self.minibatches(now))))
            unknown = math.isnan(loss)  # sent as a number: a vector with nan has no weight in the mean
            mean = await moments.mean(F.new_tensor([float(unknown), 0.0 if unknown else loss, latest_rate(me)]))
            me.weights.set_(mean[:-3])
            if me.group.total_weight == 0:  # the budget has ended: the round has no losses
                break
            latest = mean[-2:].clone()
            if mean[-3] > 0:
                latest[0] = math.nan
            F.copy_(torch.cat([latest if math.isnan(first_rate) else F[:2], latest]))

    async def steps(self, me: Learner, K: int, B: int) -> float:
        """Take K steps of B minibatches each; return the mean loss per sample, nan if a loss is not given.

        Raises:
            ValueError: A rule needs the losses, and the loop does not give them.
        """
        loss = counted = taken = samples = 0.0
        total = None
        async for g in me.gradients(at_most=K * B):
            n, taken = me.fresh_samples - counted, taken + 1
            loss += n * self._loss(me) if n > SKIPPED_SAMPLES else 0.0
            counted, samples = me.fresh_samples, samples + n
            total = g if B == 1 else g * n if total is None else total.add_(g, alpha=n)
            if taken % B == 0:
                me.descend(total if B == 1 else total.div_(samples))
                total, samples = None, 0.0
        if total is not None:  # the budget ended in the middle of a step
            me.descend(total.div_(samples))
        return loss / counted if counted > 0 else 0.0

    def _loss(self, me: Learner) -> float:
        loss = me.progress.loss
        if math.isnan(loss):
            for rule in (self.K, self.minibatches, self.rate):
                if getattr(rule, "needs_losses", False):
                    raise ValueError(f"{rule} follows the training loss: give it to every step, me.step(loss=...)")
        return loss

    def vectors_sent(self, learners: int, samples: float) -> float:  # noqa: ARG002 - the same for all minibatches
        start = Standing(Progress(0, 0.0, 0.0, 0.0, math.nan, math.nan))
        return (
            vectors(self.moments)
            * allreduce_vectors(learners)
            / (round(self.K(start)) * round(self.minibatches(start)))
        )
