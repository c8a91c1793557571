"""Learning-rate schedules: pure functions of where the whole run stands, never of a learner's own steps.

A schedule gives the factor by which the optimizer's rates are multiplied. Because it counts samples of all learners,
the number of learners may change without retuning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from murmur.learner import Progress

Schedule = Callable[[Progress], float]


@dataclass(frozen=True)
class Constant:
    """factor = times (the number of learners, say, to scale the rate with the global minibatch)."""

    times: float = 1.0

    def __call__(self, at: Progress) -> float:  # noqa: ARG002 - the same everywhere
        return self.times


@dataclass(frozen=True)
class Exponential:
    """factor = times * ratio^fraction: from `times` to `times * ratio` over the budget (Kaldi nnet3)."""

    ratio: float = 0.1
    times: float = 1.0

    def __call__(self, at: Progress) -> float:
        return float(self.times * self.ratio**at.fraction)


@dataclass(frozen=True)
class WarmUpAnneal:
    """Linear from 1 to `peak` over `warm_epochs`, then times `decay` an epoch (1/sqrt 2: the IBM papers' recipe)."""

    peak: float = 1.0
    warm_epochs: float = 10.0
    decay: float = 2**-0.5

    def __call__(self, at: Progress) -> float:
        if at.epoch < self.warm_epochs:
            return 1.0 + (self.peak - 1.0) * at.epoch / self.warm_epochs
        return float(self.peak * self.decay ** (at.epoch - self.warm_epochs))


@dataclass(frozen=True)
class Cosine:
    """Linear warm-up over the first `warm` of the budget, then half a cosine from `times` down to `times * floor`."""

    warm: float = 0.1
    floor: float = 0.0
    times: float = 1.0

    def __call__(self, at: Progress) -> float:
        if at.fraction < self.warm:
            return self.times * (at.fraction + 1e-3) / (self.warm + 1e-3)
        done = (at.fraction - self.warm) / max(1e-9, 1.0 - self.warm)
        return self.times * (self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done))))
