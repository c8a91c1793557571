"""Learning-rate schedules: pure functions of where the whole run stands, never of a learner's own steps.

A schedule gives the factor by which the optimizer's rates are multiplied. Because it counts samples of all learners,
the number of learners may change without retuning. (The minibatch may grow instead of the rate falling, as in Smith et
al. 2018: that is the `minibatches` rule of the strategy AdaptiveKAVG.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from murmur.core.learner import Progress

__all__ = [
    "Constant",
    "Cosine",
    "Exponential",
    "LargeBatch",
    "NewBob",
    "Schedule",
    "TimesLearners",
    "WarmUpAnneal",
    "listens",
]

Schedule = Callable[[Progress], float]


def listens(schedule: Schedule) -> bool:
    """True if a schedule follows the held-out losses; all learners then get them at every evaluation point."""
    return bool(getattr(schedule, "listens", False))


@dataclass(frozen=True)
class Constant:
    """factor = times (the number of learners, say, to scale the rate with the global minibatch).

    Attributes:
        times: the factor on the optimizer's learning rates.
    """

    times: float = 1.0

    def __call__(self, at: Progress) -> float:  # noqa: ARG002 - the same everywhere
        return self.times


@dataclass(frozen=True)
class Exponential:
    """factor = times * ratio^fraction: from `times` to `times * ratio` over the budget (Kaldi nnet3).

    Attributes:
        ratio: the last factor divided by the first.
        times: the first factor on the optimizer's learning rates.
    """

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
    """Linear warm-up over the first `warm` of the budget, then half a cosine from `times` down to `times * floor`.

    Attributes:
        warm: share of the budget in which the factor rises to `times`.
        floor: the last factor, as a share of `times`.
        times: the greatest factor on the optimizer's learning rates.
    """

    warm: float = 0.1
    floor: float = 0.0
    times: float = 1.0

    def __call__(self, at: Progress) -> float:
        if at.fraction < self.warm:
            return self.times * (at.fraction + 1e-3) / (self.warm + 1e-3)
        done = (at.fraction - self.warm) / max(1e-9, 1.0 - self.warm)
        return self.times * (self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done))))


@dataclass(frozen=True)
class TimesLearners:
    """factor = learners * schedule: each learner's rate where `schedule` gives the effective one (Kaldi nnet3).

    Averaging L models divides each one's step by L. ParameterAveraging multiplies by its own number of jobs already.
    """

    schedule: Schedule = field(default_factory=Exponential)

    @property
    def listens(self) -> bool:
        """As the schedule within does."""
        return listens(self.schedule)

    def __call__(self, at: Progress) -> float:
        return at.learners * self.schedule(at)


@dataclass(frozen=True)
class LargeBatch:
    """Linear from 1 to batch / reference over `warm_epochs`, then times `decay` after every further epoch.

    The recipe of IBM's papers for global minibatches of up to thousands of samples: the rate of a minibatch of 256 is
    0.1, and for `batch` it warms up to 0.1 batch / 256. Unlike `WarmUpAnneal` it anneals in steps.
    """

    batch: float = 256.0
    reference: float = 256.0
    warm_epochs: float = 10.0
    decay: float = 2**-0.5

    def __post_init__(self) -> None:
        if not (self.batch > 0 and self.reference > 0):
            raise ValueError(f"LargeBatch needs a positive batch and reference, got {self}")

    def __call__(self, at: Progress) -> float:
        after = max(0, math.floor(at.epoch - self.warm_epochs))
        whole = self.warm_epochs + after if at.epoch >= self.warm_epochs else at.epoch
        return WarmUpAnneal(self.batch / self.reference, self.warm_epochs, self.decay)(replace(at, epoch=whole))


@dataclass(frozen=True)
class NewBob:
    """factor = times * ratio^h, h: marks since the held-out loss first fell by less than `improvement` of itself.

    Constant until a mark brings too little, then smaller at every mark (ICSI's QuickNet; there training also ends when
    that brings too little again, here the budget ends it). Marks are `evaluate_every_epochs` apart. For strategies in
    lock-step, whose learners can all know the loss.
    """

    improvement: float = 0.01
    ratio: float = 0.5
    times: float = 1.0
    listens = True

    def __call__(self, at: Progress) -> float:
        """The factor.

        Raises:
            ValueError: the strategy is without lock-step.
        """
        if at.heldout is None:
            raise ValueError(
                "NewBob needs held-out losses that all learners know, but learners of this strategy do not meet at"
                " marks: choose a schedule of samples alone, such as Exponential or LargeBatch"
            )
        slow = [after > before - self.improvement * abs(before) for before, after in pairwise(at.heldout)]
        halvings = len(slow) - slow.index(True) if True in slow else 0
        return self.times * self.ratio**halvings
