"""The source of a learner's gradients, and the progress of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from murmur.core.assignment import Assignment
from murmur.core.membership import Preparation
from murmur.core.moments import Moments

SKIPPED_SAMPLES = 2.0**-40  # negligible beside real samples; a total weight of exactly 0 would end the run


@dataclass(frozen=True)
class Progress:
    """Progress of the whole run, counted over all learners; schedules and adaptive rules are functions of it.

    Attributes:
        minibatches: Minibatches handed out so far to all learners.
        samples: Samples of those minibatches on average; exact at the end of every epoch.
        epoch: Passes over the corpus so far, a real number.
        fraction: Fraction of the budget used so far, 0 to 1.
        loss: Mean loss per sample of this learner's latest minibatch (nan before the first).
        rate: Learning rate of the latest step (nan before the first).
        learners: Number of minibatches under way at a time.
        growth: Minibatch of a turn of all learners over that of one learner alone.
        heldout: Held-out losses of the consensus at the evaluation points so far, if the schedule asks for them. None
            without lock-step, where not all learners can know them.
    """

    minibatches: int
    samples: float
    epoch: float
    fraction: float
    loss: float
    rate: float
    learners: int = 1
    growth: float = 1.0
    heldout: tuple[float, ...] | None = ()


@dataclass(frozen=True)
class Computed:
    """Minibatches that were computed.

    Attributes:
        count: Their number.
        fingerprint: Sum over them that differs if one of them is replaced.
    """

    count: int = 0
    fingerprint: int = 0

    def __add__(self, other: Computed) -> Computed:
        return Computed(self.count + other.count, self.fingerprint + other.fingerprint)

    def __sub__(self, other: Computed) -> Computed:
        return Computed(self.count - other.count, self.fingerprint - other.fingerprint)


class Piece(NamedTuple):
    """Piece of a minibatch.

    Attributes:
        number: Number of the piece, 0 .. of - 1.
        of: Number of pieces.
    """

    number: int
    of: int


WHOLE = Piece(0, 1)


@dataclass(frozen=True)
class Gradient:
    """Gradient of one minibatch.

    Attributes:
        g: Gradient of the mean loss, shape (P,).
        present: For each tensor, True if it had a gradient.
        samples: Samples in the minibatch.
        loss: Mean loss per sample.
        broken: True if the weights were not finite, so that there is no gradient.
    """

    g: Tensor
    present: list[bool]
    samples: float
    loss: float
    broken: bool = False


class Gradients(Protocol):
    """Supplier of a learner's gradients."""

    piece: Piece  # piece of a minibatch whose gradient `draw` computes

    def draw(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        """Compute the gradient of the piece of minibatch n; first call `before_backward` with the number of samples."""

    def nothing(self) -> Gradient:
        """Return the gradient of no samples: zeros."""

    @property
    def preparation(self) -> Preparation:
        """Preparation of a claim before it is due. This learner computes the first minibatch of the claim."""

    def evaluate(self, w: Tensor) -> Mapping[str, float]:
        """Return held-out figures of the weights w (P,)."""


class LocalOptimizer(Protocol):
    """Taker of a learner's steps."""

    times: float  # factor on the learning rates that the strategy sets, in addition to the schedule
    decay_times: float  # factor on the weight decay that the strategy sets
    recorded: bool  # its steps are recorded: False for all but the first of several servers with parts of a model

    @property
    def moments(self) -> Moments:
        """Moments of the optimizer, which strategies may average."""

    def apply(self, g: Tensor, present: list[bool], staleness: int) -> None:
        """Take one step of the local optimizer with g, inside the model."""

    def restart(self) -> None:
        """Reset the local optimizer (momentum, second moments, step counts) but not its settings."""


class Minibatches(Protocol):
    """The minibatches of a run, and the turns in which learners compute them."""

    assignment: Assignment  # of minibatches to learners, in lock-step

    @property
    def span(self) -> tuple[int, int]:
        """Number of the first minibatch of this run, and one past the last."""

    def next_index(self, steps: int) -> int | None:
        """Return the number of this learner's next minibatch after `steps` gradients; None when the budget is spent."""

    def over(self, steps: int) -> bool:
        """True if no learner has a minibatch left in the turn after `steps` gradients."""

    def reached(self, steps: int) -> int:
        """Return the minibatches completed once every learner has taken `steps` gradients."""


class RunProgress(Protocol):
    """The progress of a run, as this learner knows it."""

    def progress(self) -> Progress:
        """Return the progress of the run."""

    def progress_at(self, minibatches: int) -> Progress:
        """Return the progress of the run after so many minibatches of all learners."""

    def claimed(self, claim: range, steps: int) -> None:
        """Record that minibatches at these positions are claimed for the `steps`-th gradient of this (super-)learner.

        At least so many minibatches have been handed out to all learners by now.
        """

    def heard(self, loss: float, compute_seconds: float) -> None:
        """Record that the next step uses another learner's gradient: its loss per sample, its seconds of computing."""

    def followed(self, staleness: int) -> None:
        """Record that the leader of this member's super-learner has taken a step that the member does not repeat."""

    async def boundary(self, me: Any) -> None:
        """Evaluate and save checkpoints between gradients; in lock-step, right after an average."""


class Source(Gradients, LocalOptimizer, Minibatches, RunProgress, Protocol):
    """All that stands behind a learner, implemented by the engine and by user loops."""
