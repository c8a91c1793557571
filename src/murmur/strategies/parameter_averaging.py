"""Kaldi's parameter averaging: J learners train a fixed number of frames each, then continue from the mean.

    iteration:  w_j   <-  n times  w_j + limited( - G r(t) g_j(w_j) )       j = 1 .. J(t), at G times the effective rate
                w     <-  s sum_j n_j w_j / sum_j n_j                       over the learners that are not outliers
    first:      w     <-  the w_j with the lowest training loss
    at the end: w     <-  a combination of the newest models, chosen on held-out data

n: minibatches that hold `frames_per_iteration` on average; n_j: frames used; J(t): a ramp; G: minibatches of J(t)
learners over that of one alone, which is J(t) if each takes whole minibatches; limited: max-change; s: shrink. The
schedule of the experiment gives the *effective* rate r(t); Kaldi's is
Exponential(0.1), its step with momentum `keep_rate`. Povey et al. 2015 (arXiv 1410.7455); Kaldi nnet3; kaldi-mpi:
Rosciszewski & Kaliski, HPCS 2017. Kaldi takes the first iteration with half minibatches and bounds over sqrt 2:
`first_pieces=2`. Left out: growing layer by layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from murmur.core.facts import Form, Planner, allreduce_vectors
from murmur.core.learner import Learner
from murmur.core.source import SKIPPED_SAMPLES
from murmur.core.torch_private import foreach_norm

Loss = Callable[[Tensor], float]  # held-out loss per sample of weights w (P,)


@dataclass(frozen=True)
class Jobs:
    """Number of learners J(f) that train when the fraction f of the budget is used.

    Kaldi lets J grow by equal steps per iteration, from J_0 to J_1. An iteration uses J archives, so that at f

        J(f) = int(1/2 + sqrt(J_0^2 + (J_1^2 - J_0^2) min(1, f / reach)))

    kaldi-mpi is at full width after half of its iterations. These are shorter at the beginning, so that half of them
    are a smaller part of the budget:

        reach = (J_0 + J_1) / (J_0 + 3 J_1)

    Attributes:
        initial: J_0, the number at the beginning.
        final: J_1, the largest number; None: all learners.
        reach: Fraction of the budget after which J_1 is reached.
    """

    initial: int = 1
    final: int | None = None
    reach: float = 1.0

    def __post_init__(self) -> None:
        if self.initial < 1 or (self.final is not None and self.final < self.initial) or not self.reach > 0:
            raise ValueError(f"Jobs needs 1 <= initial <= final and reach > 0, got {self}")

    def __call__(self, fraction: float, learners: int) -> int:
        last = learners if self.final is None else min(self.final, learners)
        first = min(self.initial, last)
        return int(0.5 + math.sqrt(first**2 + (last**2 - first**2) * min(1.0, fraction / self.reach)))


@dataclass(frozen=True)
class MaxChange:
    """Bounds on the Euclidean length of one step: for each tensor's part, then for the whole; None: no bound.

    Attributes:
        per_tensor: Bound of the part of each tensor.
        overall: Bound of the whole step.
        output: Bound of the last `output_tensors` tensors; None: as the others. Kaldi's recipes use 1.5.
        output_tensors: Number of tensors of the output layer.
    """

    per_tensor: float | None = 0.75
    overall: float | None = 2.0
    output: float | None = None
    output_tensors: int = 2

    def over(self, divisor: float) -> MaxChange:
        bounds = (self.per_tensor, self.overall, self.output)
        per_tensor, overall, output = (None if bound is None else bound / divisor for bound in bounds)
        return MaxChange(per_tensor, overall, output, self.output_tensors)

    def __call__(self, step: Tensor, parts: Sequence[Tensor]) -> Tensor | None:
        """Return the step (P,) within the bounds (`step` itself if it was), or None if it is not finite.

        A step of None is discarded. `parts` are views of the step, one per tensor of the model.
        """
        lengths = torch.stack(foreach_norm(list(parts))).double()
        if not bool(lengths.isfinite().all()):
            return None
        bounds = torch.full_like(lengths, math.inf if self.per_tensor is None else self.per_tensor)
        if self.output is not None:
            bounds[-self.output_tensors :] = self.output
        scales = (bounds / lengths).clamp(max=1.0)
        if self.overall is not None:
            scales = scales * (self.overall / (lengths * scales).norm()).clamp(max=1.0)
        if bool((scales == 1).all()):
            return step
        return torch.cat([part.flatten() * scale for part, scale in zip(parts, scales.to(step.dtype), strict=True)])


def shares(losses: Sequence[float], samples: Sequence[float], margin: float, first: bool) -> list[float]:
    """Return the weight of every learner in the average: its samples, or 0.

    Learners with a mean training loss of more than `margin` per sample above the best are left out. In the first
    iteration all but the best one are, because averaging newly initialised models does not help.
    """
    there = [loss if n > 0 and math.isfinite(loss) else math.inf for loss, n in zip(losses, samples, strict=True)]
    best = min(there)
    if not math.isfinite(best):
        return list(samples)
    if first:
        return [n if i == there.index(best) else 0.0 for i, n in enumerate(samples)]
    return [n if math.isfinite(loss) and loss <= best + margin else 0.0 for loss, n in zip(there, samples, strict=True)]


@dataclass(frozen=True)
class ProportionalShrink:
    """Factor 1 - times * rate on new models (Kaldi's proportional-shrink).

    Attributes:
        times: Factor on the learning rate; 0: no shrink.
    """

    times: float = 0.0

    def __call__(self, rate: float, figures: Callable[[], Mapping[str, float]]) -> float:  # noqa: ARG002
        return 1.0 - self.times * rate


@dataclass(frozen=True)
class SaturationShrink:
    """Factor on new models if a held-out figure of the task is above a threshold (Kaldi's LSTMs).

    Attributes:
        factor: The factor.
        above: The threshold.
        figure: Name of the figure.
    """

    factor: float = 0.99
    above: float = 0.40
    figure: str = "saturation"

    def __call__(self, rate: float, figures: Callable[[], Mapping[str, float]]) -> float:  # noqa: ARG002
        found = figures()
        if self.figure not in found:
            raise ValueError(f"the task's evaluate() gives no {self.figure!r}, only {', '.join(found)}: add it")
        return self.factor if found[self.figure] > self.above else 1.0


@dataclass(frozen=True)
class RunningMean:
    """Mean of the newest n models, for the n with the lowest held-out loss (Kaldi since 2018).

    Attributes:
        models: Largest n.
    """

    models: int = 20

    def __call__(self, newest_first: Sequence[Tensor], loss: Loss) -> Tensor:
        best, lowest = newest_first[0], math.inf
        mean = torch.zeros_like(best)
        for n, w in enumerate(newest_first, start=1):
            mean += (w - mean) / n
            found = loss(mean)
            if found < lowest:
                best, lowest = mean.clone(), found
        return best


@dataclass(frozen=True)
class WeightedMean:
    """Non-negative weights that sum to one, chosen on held-out loss (Kaldi until 2018).

    Kaldi climbs with gradients. Here each older model in turn takes the part c of the sum that lowers the loss most,
    with c from shares / 2^1, shares / 2^2, ...: a search by function values alone.

    Attributes:
        models: Number of newest models.
        halvings: Number of values of c that are tried for each model.
    """

    models: int = 20
    halvings: int = 3

    def __call__(self, newest_first: Sequence[Tensor], loss: Loss) -> Tensor:
        best, lowest = newest_first[0], loss(newest_first[0])
        for w in newest_first[1:]:
            tried = [best + (w - best) * 2.0**-k for k in range(1, self.halvings + 1)]
            losses = [loss(candidate) for candidate in tried]
            if min(losses) < lowest:
                lowest = min(losses)
                best = tried[losses.index(lowest)]
        return best


@dataclass(frozen=True)
class ParameterAveraging:
    """Averaging of the models every `frames_per_iteration` frames per learner.

    Attributes:
        frames_per_iteration: Samples (frames) of each learner, member of a super-learner or not, between averages.
        jobs: Ramp of the number of learners; the others wait, with weight 0.
        limit: Bounds of a step.
        shrink: Factor on new models.
        outlier_margin: Training loss per frame above the best learner's at which a learner is left out.
        optimizer: "restart": the local optimizer is reset after every average, as in Kaldi, where each job is a new
            process; "keep": each learner keeps its optimizer's state.
        combine: Rule that makes the final model from the newest ones.
        decay: Factor on the optimizer's weight decay: "by jobs" divides it by the factor on the rate, as Kaldi does
            with its l2 factor; "whole" leaves it as it is.
        rate: Factor on the rate: "by growth" is G, so that a step of the average is that of the effective rate
            also if minibatches are cut among the learners; "by jobs" is J(t), as in Kaldi, whose jobs all have whole
            minibatches.
        first_pieces: Steps with each minibatch of the first iteration, each with a piece of it, at bounds divided by
            sqrt(first_pieces). Above 1 the task must be able to cut minibatches (`murmur.engine.task.Divisible`).
    """

    lock_step: ClassVar[bool] = True
    tolerates_loss: ClassVar[bool] = True
    accepts_new_learners: ClassVar[bool] = True
    bitwise_alone: ClassVar[bool] = False
    ends_equal: ClassVar[bool] = True
    staleness: ClassVar[int | None] = 0
    follows_growth: ClassVar[bool] = True  # by its factor on the rate
    frames_per_iteration: float = 400_000
    jobs: Jobs = field(default_factory=Jobs)
    limit: MaxChange = field(default_factory=MaxChange)
    shrink: ProportionalShrink | SaturationShrink = field(default_factory=ProportionalShrink)
    outlier_margin: float = 1.0
    optimizer: Literal["restart", "keep"] = "restart"
    combine: RunningMean | WeightedMean = field(default_factory=RunningMean)
    decay: Literal["by jobs", "whole"] = "by jobs"
    first_pieces: int = 1
    rate: Literal["by growth", "by jobs"] = "by growth"

    def __post_init__(self) -> None:
        if not (self.frames_per_iteration > 0 and self.outlier_margin >= 0 and self.first_pieces >= 1):
            raise ValueError(
                "ParameterAveraging needs frames_per_iteration > 0, outlier_margin >= 0 and first_pieces >= 1,"
                f" got {self}"
            )

    async def __call__(self, me: Learner) -> None:
        n, settings = self.steps(me.progress_at(1).samples), me.settings
        newest_first = [me.outer[name] for name in sorted(me.outer) if name.startswith("model ")]
        while me.training:
            await me.between_rounds()
            done = me.reached.minibatches
            J = self.jobs(me.reached.fraction, len(me.group.live))
            me.assign(done, J)
            settings.times = times = me.progress.growth if self.rate == "by growth" else float(J)
            settings.decay_times = 1 / times if self.decay == "by jobs" else 1.0
            loss = await self.iteration(me, n, self.first_pieces if done == 0 else 1)
            table = await self.reports(me, loss)
            weights = shares(*table, self.outlier_margin, first=done == 0)
            mean = await me.group.mean(me.weights.snapshot(), weight=weights[me.group.rank])
            if me.group.total_weight == 0:
                break
            mean *= await self.shrinking(me, mean)
            me.weights.set_(mean)
            if self.optimizer == "restart":
                me.restart()
            newest_first = [mean, *newest_first][: self.combine.models] if me.leads else []
            me.outer.update({f"model {k:03}": w for k, w in enumerate(newest_first)})
        await self.finish(me, newest_first)

    def steps(self, samples: float) -> int:
        """Minibatches of `samples` samples that a learner trains between two averages, at least one."""
        return max(1, round(self.frames_per_iteration / samples))

    async def iteration(self, me: Learner, n: int, pieces: int) -> float:
        """Take n minibatches, each in `pieces` steps within the bounds; return the mean training loss per frame."""
        loss = before_it = counted = 0.0
        limit = self.limit.over(math.sqrt(pieces))
        async for g in me.gradients(at_most=n, pieces=pieces):
            fresh, before_it = me.fresh_samples - before_it, me.fresh_samples
            if fresh > SKIPPED_SAMPLES:
                loss, counted = loss + fresh * me.progress.loss, counted + fresh
            before = me.weights.snapshot()
            me.descend(g)
            step = me.weights.snapshot() - before
            limited = limit(step, me.weights.layout.views(step))
            if limited is None:  # discard an infinite step and the optimizer's state
                me.weights.set_(before)
                me.restart()
            elif limited is not step:
                me.weights.set_(before + limited)
        return loss / counted if counted else math.inf

    async def reports(self, me: Learner, loss: float) -> tuple[list[float], list[float]]:
        """Return the training loss and frames of every learner, exactly, by a sum with one place for each learner."""
        size, rank = me.group.size, me.group.rank
        table = me.weights.layout.empty().new_zeros((2, size), dtype=torch.float64)
        table[:, rank] = table.new_tensor([loss, me.fresh_samples])
        losses, samples = (await me.group.start_sum(table.flatten())).view(2, size).tolist()
        return losses, samples

    async def shrinking(self, me: Learner, mean: Tensor) -> float:
        """Return the shrink of a new model, as computed by the first live learner."""
        factor = 1.0
        if me.leads and not math.isnan(me.progress.rate):  # nan before the first step
            factor = self.shrink(me.progress.rate, lambda: me.evaluate(mean))
        return float(await me.group.broadcast(torch.tensor([factor], dtype=torch.float64), me.group.live[0]))

    async def finish(self, me: Learner, newest_first: list[Tensor]) -> None:
        w = me.weights.snapshot()
        final = self.combine(newest_first, lambda w: me.evaluate(w)["loss"]) if newest_first else w
        me.weights.set_(await me.group.broadcast(final, me.group.live[0]))

    def vectors_sent(self, learners: int, samples: float) -> float:
        return allreduce_vectors(learners) / self.steps(samples)

    def planned(self, planner: Planner) -> Form:
        kept = self.combine.models  # by the first learner
        return planner.every(self.steps(planner.samples), vectors=6 + kept, jobs=self.jobs)
