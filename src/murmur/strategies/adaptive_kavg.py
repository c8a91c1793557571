"""K-step averaging with K, minibatch and rate that follow the run.

    K(t) times   w_i <- w_i - r(t) alpha g_i(w_i),        g_i: mean gradient of B(t) minibatches
    then         w_i <- sum_j n_j w_j / sum_j n_j,        F_t  = sum_j n_j F_j / sum_j n_j

F_j is learner j's mean training loss per sample in the round; it is averaged as one more element of the model, so that
all learners take the same K, B and r, to the bit. K and B fixed, r = 1: KAVG(K). Rules:

    AdaComm     K_t = ceil( K_0 sqrt( (F_t / F_0) (eta_0 / eta_t)^p ) )
    Geometric   first (last / first)^f        f: fraction of the budget used
    Stages      values[s] while f < until[s], the last value after that
    Quadratic   max(least, floor((scale / eta_t)^2))
    PostLocal   1 while f < after, then K

eta: learning rate. AdaComm: Wang & Joshi 2018 (arXiv 1810.08313): few averages while the loss is high, more as it
falls; p = 1 couples K to a falling rate, p = 0 leaves it out. Cong et al. (MLHPC 2017) report "adaptive measures"
without accessible formulas; schedules of K, minibatch and rate replace them. Quadratic: Gu et al. 2024 (arXiv
2310.14423), more local steps as the rate falls. PostLocal: Lin et al. 2020 (arXiv 1808.07217), local steps after a
phase of exact ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from murmur.core.facts import allreduce_vectors
from murmur.core.learner import Learner, Progress
from murmur.core.source import SKIPPED_SAMPLES
from murmur.strategies.block_moments import BlockMoments, MeanMoments, WithMoments, check, latest_rate, vectors


@dataclass(frozen=True)
class Standing:
    """Input of a rule, the same on every learner. Losses and rates are nan before the first round.

    Losses stay nan in a loop that does not give them.

    Attributes:
        at: Progress of the run; its loss is that of the latest round over all learners.
        first_loss: Loss of the first round.
        first_rate: Learning rate of the last step of the first round.
    """

    at: Progress
    first_loss: float = math.nan
    first_rate: float = math.nan


Rule = Callable[[Standing], float]


@dataclass(frozen=True)
class AdaComm:
    """K, starting at `K`, falls with the loss and grows as the rate falls; between 1 and `most`."""

    needs_losses: ClassVar[bool] = True
    K: int = 16
    rate_power: float = 1.0
    most: int = 64

    def __post_init__(self) -> None:
        if not 1 <= self.K <= self.most:
            raise ValueError(f"AdaComm needs 1 <= K <= most, got {self}")

    def __call__(self, now: Standing) -> float:
        square = now.at.loss / now.first_loss if now.first_loss > 0 else 1.0
        if self.rate_power and now.at.rate > 0:
            square *= (now.first_rate / now.at.rate) ** self.rate_power
        return min(self.most, max(1, math.ceil(self.K * math.sqrt(max(0.0, square)))))


@dataclass(frozen=True)
class Geometric:
    """From `first` to `last` over the budget, by equal factors for equal parts of it."""

    first: float = 16
    last: float = 1

    def __post_init__(self) -> None:
        if not (self.first > 0 and self.last > 0):
            raise ValueError(f"Geometric needs positive numbers, got {self}")

    def __call__(self, now: Standing) -> float:
        return float(self.first * (self.last / self.first) ** now.at.fraction)


@dataclass(frozen=True)
class Stages:
    """values[s] while less than until[s] of the budget is used; `values` is one longer than `until`."""

    values: tuple[float, ...] = (1,)
    until: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.values) != len(self.until) + 1 or min(self.values) <= 0 or list(self.until) != sorted(self.until):
            raise ValueError(f"Stages needs positive values, rising fractions `until` and one value more, got {self}")

    def __call__(self, now: Standing) -> float:
        return self.values[sum(now.at.fraction >= share for share in self.until)]


@dataclass(frozen=True)
class Quadratic:
    """K = max(least, floor((scale / rate)^2)), at most `most`: averages become rare as the rate falls.

    Attributes:
        scale: Rate at which K is 1.
        least: Smallest K.
        most: Largest K.
    """

    scale: float = 1e-3
    least: int = 2
    most: int = 64

    def __post_init__(self) -> None:
        if not (self.scale > 0 and 1 <= self.least <= self.most):
            raise ValueError(f"Quadratic needs scale > 0 and 1 <= least <= most, got {self}")

    def __call__(self, now: Standing) -> float:
        if not now.at.rate > 0:  # nan before the first round
            return self.least
        return min(self.most, max(self.least, math.floor((self.scale / now.at.rate) ** 2)))


@dataclass(frozen=True)
class PostLocal:
    """1 while less than `after` of the budget is used, then K."""

    K: int = 8
    after: float = 0.5

    def __post_init__(self) -> None:
        if not (self.K >= 1 and 0 <= self.after <= 1):
            raise ValueError(f"PostLocal needs K >= 1 and 0 <= after <= 1, got {self}")

    def __call__(self, now: Standing) -> float:
        return self.K if now.at.fraction >= self.after else 1


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
            me.settings.times = self.rate(now)
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
