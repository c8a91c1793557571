"""Length of training, counted in minibatches of all learners, so that their number may change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral

from murmur.engine.task import Task

ROUNDING = 1e-12  # relative; errors of products and sums are a thousand times smaller


@dataclass(frozen=True)
class Budget:
    """Length of training in one of three units; one epoch by default.

    Attributes:
        epochs: Passes over the corpus by all learners together.
        samples: Samples (frames or utterances, as the task defines) of all learners together.
        minibatches: Gradients of all learners together.
    """

    epochs: float | None = None
    samples: float | None = None
    minibatches: int | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            raise ValueError(f"a budget is given in one unit, got {' and '.join(f'{n}={v}' for n, v in given.items())}")
        if not isinstance(self.minibatches, Integral | None):
            raise ValueError(f"budget.minibatches must be a whole number, got {self.minibatches}")
        for name, value in given.items():
            if not 0 <= value < float("inf"):
                raise ValueError(f"budget.{name} must be finite and not negative, got {value}")

    def total(self, task: Task) -> int:
        if self.minibatches is not None:
            return self.minibatches
        if self.samples is not None:
            return _up(self.samples / task.samples_per_epoch * task.per_epoch)
        return _up((1.0 if self.epochs is None else self.epochs) * task.per_epoch)


def _up(minibatches: float) -> int:
    """Return the next whole number, but not for an excess that is a rounding error: 1.1 * 100 is 110.00000000000001."""
    return math.ceil(minibatches * (1 - ROUNDING))
