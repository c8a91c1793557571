"""Rules of Kaldi's parameter averaging: pure functions of the run's progress and the learners' reports.

Kaldi nnet3 (`steps/nnet3/train_rnn.py`) and kaldi-mpi (Rosciszewski & Kaliski, HPCS 2017), see `parameter_averaging`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
        """Return these bounds divided by a number."""
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
