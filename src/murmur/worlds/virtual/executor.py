"""Where the virtual world computes its learners' gradients: each when it begins, or many of them by one call.

A gradient is a function of the weights at its start, which its learner's model keeps, and of its minibatch: it may be
computed at any moment until its modelled seconds are over. So all that are under way when the first of them is needed
are computed together. Learners at the same pace are then nearly all in every call, whatever jitter lies between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from murmur.core.pending_gradient import ComputeBatch, PendingGradient
from murmur.core.source import Gradient

T = TypeVar("T")


class GradientExecutor(Protocol):
    """Takes jobs when they begin, and has their results when their seconds are over."""

    def begin(self, job: Callable[[], T]) -> Callable[[], T]:
        """A job begins; the answer gives its result."""

    def forget(self, job: Callable[[], Any]) -> None:
        """Nobody will ask for this job's result any more."""


class ImmediateExecutor:
    """Every job is done when it begins."""

    def begin(self, job: Callable[[], T]) -> Callable[[], T]:
        """Do it."""
        result = job()
        return lambda: result

    def forget(self, job: Callable[[], Any]) -> None:
        """Nothing is kept."""


class BatchedExecutor:
    """Gradients wait until one of them is needed; then all that have begun are computed by one call of `together`."""

    def __init__(self, together: ComputeBatch) -> None:
        self._together = together
        self._waiting: list[PendingGradient] = []
        self._done: dict[PendingGradient, Gradient] = {}

    def begin(self, job: Callable[[], T]) -> Callable[[], T]:
        """Put a gradient beside the others under way; any other job is done at once."""
        if not isinstance(job, PendingGradient):
            return ImmediateExecutor().begin(job)
        job.begin()
        self._waiting.append(job)
        return lambda: self._result(job)

    def forget(self, job: Callable[[], Any]) -> None:
        """Drop a gradient: its learner is gone, or has it."""
        if isinstance(job, PendingGradient):
            self._done.pop(job, None)
            if job in self._waiting:
                self._waiting.remove(job)

    def _result(self, job: PendingGradient) -> Any:
        if job not in self._done:
            waiting, self._waiting = self._waiting, []
            for pending, gradient in zip(waiting, self._together(waiting), strict=True):
                pending.end()
                self._done[pending] = gradient
        return self._done[job]
