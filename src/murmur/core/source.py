"""The source of a learner's gradients, and the progress of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from murmur.core.assignment import Turns
from murmur.core.flat import Layout
from murmur.core.membership import Preparation
from murmur.core.moments import Moments
from murmur.core.weights import Weights

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

    @classmethod
    def nothing(cls, layout: Layout) -> Gradient:
        """Return the gradient of no samples: zeros."""
        zeros = torch.zeros(layout.numel, dtype=layout.dtype, device=layout.device)
        return cls(zeros, [False] * len(layout.tensors), 0.0, math.nan)


class StepSettings(Protocol):
    """Settings of a learner's steps that its strategy may change."""

    times: float  # factor on the learning rates, in addition to the schedule
    decay_times: float  # factor on the weight decay
    recorded: bool  # its steps are recorded: False for all but the first of several servers with parts of a model


class LocalOptimizer(StepSettings, Protocol):
    """The optimizer that takes a learner's steps."""

    @property
    def moments(self) -> Moments:
        """Moments of the optimizer, which strategies may average."""

    def restart(self) -> None:
        """Reset the local optimizer (momentum, second moments, step counts) but not its settings."""


class Source(Protocol):
    """All that stands behind a learner: gradients, minibatches and progress of its run, its optimizer.

    The engine and user loops implement it.
    """

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

    @property
    def turns(self) -> Turns:
        """Turns of this learner, with the assignment of minibatches to learners in lock-step."""

    @property
    def span(self) -> tuple[int, int]:
        """Number of the first minibatch of this run, and one past the last."""

    def next_index(self, steps: int) -> int | None:
        """Return the number of this learner's next minibatch after `steps` gradients; None when the budget is spent."""

    def over(self, steps: int) -> bool:
        """True if no learner has a minibatch left in the turn after `steps` gradients."""

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

    @property
    def local_optimizer(self) -> LocalOptimizer:
        """The local optimizer."""

    def apply(self, g: Tensor, present: list[bool], staleness: int) -> None:
        """Take one step of the local optimizer with g, inside the model."""


class PendingGradient:
    """The gradient of minibatch n at the weights held when it begins; a call computes it alone.

    While it is under way the model keeps those weights (`Weights.held`), so that a world may compute it at any moment
    before its time is over, alone or in a batch with those of others.

    Attributes:
        source: Source that computes it.
        n: Number of the minibatch.
        before_backward: Called with the number of samples before the backward pass; None: not needed.
        version: Version of the weights at which it is taken, once it has begun.
    """

    def __init__(
        self, source: Source, n: int, weights: Weights, before_backward: Callable[[float], None] | None
    ) -> None:
        self.source, self.n, self.before_backward = source, n, before_backward
        self.version = 0
        self._weights = weights
        self._held = ExitStack()

    def begin(self) -> None:
        self.version = self._held.enter_context(self._weights.held())

    def end(self) -> None:
        self._held.close()

    def __call__(self) -> Gradient:
        with self._weights.held() as self.version:
            return self.source.draw(self.n, self.before_backward)


ComputeBatch = Callable[[Sequence[PendingGradient]], list[Gradient]]  # computes pending gradients in one call, in order
