"""Learning-rate schedules: pure functions of the progress of the whole run, not of a learner's own steps.

A schedule gives the factor by which the optimizer's rates are multiplied. Because it counts samples of all learners,
the number of learners may change without retuning. (The rule `minibatches` of the strategy AdaptiveKAVG increases the
minibatch instead of decreasing the rate, as in Smith et al. 2018.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from murmur.core.learner import Progress

Schedule = Callable[[Progress], float]
ROUNDING_EPOCHS = 1e-9  # of differences of epochs; a minibatch is longer


def listens(schedule: Schedule) -> bool:
    """Return True if a schedule depends on held-out losses, which all learners then get at every evaluation point."""
    return bool(getattr(schedule, "listens", False))


def _check(schedule: object, positive: Sequence[str] = (), not_negative: Sequence[str] = ()) -> None:
    for name in (*positive, *not_negative):
        value = getattr(schedule, name)
        if not (math.isfinite(value) and (value > 0 if name in positive else value >= 0)):
            wanted = "positive" if name in positive else "not negative"
            raise ValueError(f"{type(schedule).__name__} needs {name} finite and {wanted}, got {schedule}")


@dataclass(frozen=True)
class Constant:
    """factor = times (such as the number of learners, to scale the rate with the global minibatch).

    Attributes:
        times: Factor on the optimizer's learning rates.
    """

    times: float = 1.0

    def __post_init__(self) -> None:
        _check(self, not_negative=("times",))

    def __call__(self, at: Progress) -> float:  # noqa: ARG002 - the same everywhere
        return self.times


@dataclass(frozen=True)
class Exponential:
    """factor = times * ratio^fraction: from `times` to `times * ratio` over the budget (Kaldi nnet3).

    Attributes:
        ratio: Last factor divided by the first.
        times: First factor on the optimizer's learning rates.
    """

    ratio: float = 0.1
    times: float = 1.0

    def __post_init__(self) -> None:
        _check(self, positive=("ratio",), not_negative=("times",))

    def __call__(self, at: Progress) -> float:
        return float(self.times * self.ratio**at.fraction)


@dataclass(frozen=True)
class WarmUpAnneal:
    """Linear from 1 to `peak` over `warm_epochs`, then times `decay` an epoch (1/sqrt 2: the IBM papers' recipe)."""

    peak: float = 1.0
    warm_epochs: float = 10.0
    decay: float = 2**-0.5

    def __post_init__(self) -> None:
        _check(self, positive=("decay",), not_negative=("peak", "warm_epochs"))

    def __call__(self, at: Progress) -> float:
        if at.epoch < self.warm_epochs:
            return 1.0 + (self.peak - 1.0) * at.epoch / self.warm_epochs
        return float(self.peak * self.decay ** (at.epoch - self.warm_epochs))


@dataclass(frozen=True)
class Cosine:
    """Linear warm-up over the first `warm` of the budget, then half a cosine from `times` down to `times * floor`.

    Attributes:
        warm: Share of the budget in which the factor rises to `times`.
        floor: Last factor, as a share of `times`.
        times: Largest factor on the optimizer's learning rates.
    """

    warm: float = 0.1
    floor: float = 0.0
    times: float = 1.0

    def __post_init__(self) -> None:
        _check(self, not_negative=("warm", "floor", "times"))
        if self.warm > 1:
            raise ValueError(f"Cosine needs warm <= 1, a share of the budget, got {self}")

    def __call__(self, at: Progress) -> float:
        if at.fraction < self.warm:
            return self.times * (at.fraction + 1e-3) / (self.warm + 1e-3)
        done = (at.fraction - self.warm) / max(1e-9, 1.0 - self.warm)
        return self.times * (self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done))))


@dataclass(frozen=True)
class TimesLearners:
    """factor = G * schedule: rate of each learner if `schedule` gives the effective rate (Kaldi nnet3).

    G is the number of learners L, or L / c if each minibatch is cut in c pieces: averaging L models divides the step of
    each by L. `ParameterAveraging` already multiplies by G.
    """

    follows_growth = True  # a fact for `murmur.engine.scaling`
    schedule: Schedule = field(default_factory=Exponential)

    @property
    def listens(self) -> bool:
        return listens(self.schedule)

    def __call__(self, at: Progress) -> float:
        return at.growth * self.schedule(at)


@dataclass(frozen=True)
class LargeBatch:
    """Linear from 1 to batch / reference over `warm_epochs`, then times `decay` after every further epoch.

    The recipe of IBM's papers for global minibatches of up to thousands of samples: the rate of a minibatch of 256 is
    0.1, and for `batch` it warms up to 0.1 batch / 256. Unlike `WarmUpAnneal` it anneals in steps.

    Attributes:
        batch: Samples of the minibatch of all learners.
        reference: Samples of the minibatch to which the optimizer's rate belongs.
        warm_epochs: Epochs in which the factor rises.
        decay: Factor of every later epoch.
    """

    follows_growth = True
    batch: float = 256.0
    reference: float = 256.0
    warm_epochs: float = 10.0
    decay: float = 2**-0.5

    def __post_init__(self) -> None:
        _check(self, positive=("batch", "reference", "decay"), not_negative=("warm_epochs",))
        if not math.isfinite(self.batch / self.reference):
            raise ValueError(f"LargeBatch needs a finite batch / reference, got {self}")

    def __call__(self, at: Progress) -> float:
        after = max(0, math.floor(at.epoch - self.warm_epochs + ROUNDING_EPOCHS))
        whole = self.warm_epochs + after if at.epoch >= self.warm_epochs else at.epoch
        return WarmUpAnneal(self.batch / self.reference, self.warm_epochs, self.decay)(replace(at, epoch=whole))


@dataclass(frozen=True)
class NewBob:
    """factor = times * ratio^h, h: evaluation points since the held-out loss first fell by less than `improvement`.

    The factor is constant until a relative improvement is too small, and then falls at every point (QuickNet,
    which also ends training at the next small improvement; here the budget ends it). Points are `evaluate_every_epochs`
    apart. For lock-step strategies, whose learners all know the loss.
    """

    improvement: float = 0.01
    ratio: float = 0.5
    times: float = 1.0
    listens = True

    def __post_init__(self) -> None:
        _check(self, positive=("ratio",), not_negative=("times",))
        if self.ratio > 1 or not math.isfinite(self.improvement):
            raise ValueError(f"NewBob needs ratio <= 1 and a finite improvement, got {self}")

    def __call__(self, at: Progress) -> float:
        if at.heldout is None:
            raise ValueError(
                "NewBob needs held-out losses that all learners know, but learners of this strategy do not meet at"
                " marks: choose a schedule of samples alone, such as Exponential or LargeBatch"
            )
        slow = [after > before - self.improvement * abs(before) for before, after in pairwise(at.heldout)]
        halvings = len(slow) - slow.index(True) if True in slow else 0
        return self.times * self.ratio**halvings
