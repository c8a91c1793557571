"""Where a learner's gradients come from and its steps go, and where a run stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from murmur.core.assignment import Assignment
from murmur.core.membership import Preparation

SKIPPED_SAMPLES = 2.0**-40  # counts for nothing beside real samples; 0 from everybody would be the end of the run


@dataclass(frozen=True)
class Progress:
    """Where the whole run stands, counted over all learners; schedules and adaptive rules are functions of it.

    Attributes:
        minibatches: handed out so far, by all learners together.
        samples: what those hold on average; exact at the end of every epoch.
        epoch: passes over the corpus so far, a real number.
        fraction: share of the budget used so far, 0 to 1.
        loss: mean loss per sample of this learner's latest minibatch (nan before the first).
        rate: learning rate of the latest step (nan before the first).
        learners: how many minibatches are dealt with at a time.
        heldout: held-out losses of the consensus at the marks so far, if the schedule asks for them; None where not all
            learners can know them: without lock-step.
    """

    minibatches: int
    samples: float
    epoch: float
    fraction: float
    loss: float
    rate: float
    learners: int = 1
    heldout: tuple[float, ...] | None = ()


@dataclass(frozen=True)
class Gradient:
    """A minibatch's gradient: vector g (P,) of the mean loss, which tensors had one, and how many samples it holds.

    `broken`: there is none, for the weights at which it was to be taken are not finite.
    """

    g: Tensor
    present: list[bool]
    samples: float
    loss: float
    broken: bool = False


class Source(Protocol):
    """Where a learner's gradients come from and its steps go; the engine (or a stranger's loop) stands behind it."""

    times: float  # factor of the strategy's own on the learning rates, on top of the schedule's

    assignment: Assignment  # whose each minibatch is, in lock-step

    def next_index(self, steps: int) -> int | None:
        """Number of this learner's next minibatch after `steps` gradients; None when the budget is spent."""

    def over(self, steps: int) -> bool:
        """Whether no learner has a minibatch left in the turn after `steps` gradients."""

    def reached(self, steps: int) -> int:
        """Minibatches that are behind once every learner has taken so many gradients."""

    @property
    def span(self) -> tuple[int, int]:
        """Number of the first minibatch of this run, and one past the last."""

    def claimed(self, claim: range, steps: int) -> None:
        """Minibatches at these positions are out, for the `steps`-th gradient of this learner (of its node).

        At least so many are handed out to all learners by now.
        """

    @property
    def preparation(self) -> Preparation:
        """What can be done for a claim, of which this learner computes the first minibatch, before it is due."""

    def heard(self, loss: float) -> None:
        """The next step is made of another learner's gradient, at this loss per sample."""

    def draw(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        """Compute the gradient of minibatch n; `before_backward` is told the number of samples first."""

    def nothing(self) -> Gradient:
        """The gradient of no samples: zeros."""

    def apply(self, g: Tensor, present: list[bool], staleness: int) -> None:
        """One step of the local optimizer with g, inside the model."""

    def progress(self) -> Progress:
        """Where the run stands."""

    def progress_at(self, minibatches: int) -> Progress:
        """Where the run stands after so many minibatches of all learners together."""

    def restart(self) -> None:
        """Let the local optimizer forget everything but its settings: momentum, second moments, step counts."""

    def evaluate(self, w: Tensor) -> Mapping[str, float]:
        """Held-out figures of the weights w (P,)."""

    async def boundary(self, me: Any) -> None:
        """Called between gradients: evaluation and checkpoints. Lock-step: where nothing local is un-averaged."""
