"""Rules of adaptive K-step averaging: pure functions of the run's progress, evaluated alike by all learners.

    AdaComm     K_t = ceil( K_0 sqrt( (F_t / F_0) (eta_0 / eta_t)^p ) )
    Geometric   first (last / first)^f        f: fraction of the budget used
    Stages      values[s] while f < until[s], the last value after that
    Quadratic   max(least, floor((scale / eta_t)^2))
    PostLocal   1 while f < after, then K

F_t is the mean training loss per sample of the latest round over all learners, F_0 that of the first, eta the
learning rate. AdaComm: Wang & Joshi 2018 (arXiv 1810.08313): few averages while the loss is high, more as it falls;
p = 1 couples K to a falling rate, p = 0 leaves it out. Cong et al. (MLHPC 2017) report "adaptive measures" without
accessible formulas; schedules of K, minibatch and rate replace them. Quadratic: the quadratic synchronisation rule of
Gu et al. 2024 (arXiv 2310.14423), more local steps as the rate falls. PostLocal: Lin et al. 2020 (arXiv 1808.07217),
local steps after a phase of exact ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from murmur.core.learner import Progress


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
