"""Executors of gradients in the virtual world: each when it begins, or many in one call.

A gradient is a function of the weights at its start, which its learner's model keeps, and of its minibatch. It may
therefore be computed at any moment until its modelled seconds are over. When the first gradient under way is needed,
all of them are computed in one call. For learners at the same pace, nearly all are in every call, whatever the jitter.
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
        """Begin a job; return a function that returns its result."""

    def forget(self, job: Callable[[], Any]) -> None:
        """Drop a job whose result is not needed any more."""


class ImmediateExecutor:
    """Executor that does every job when it begins."""

    def begin(self, job: Callable[[], T]) -> Callable[[], T]:
        """Do the job."""
        result = job()
        return lambda: result

    def forget(self, job: Callable[[], Any]) -> None:
        """Do nothing."""


class BatchedExecutor:
    """Executor of gradients in batches: when one is needed, one call of `together` computes all that have begun."""

    def __init__(self, together: ComputeBatch) -> None:
        self._together = together
        self._waiting: list[PendingGradient] = []
        self._done: dict[PendingGradient, Gradient] = {}

    def begin(self, job: Callable[[], T]) -> Callable[[], T]:
        """Add a gradient to those under way; do any other job at once."""
        if not isinstance(job, PendingGradient):
            return ImmediateExecutor().begin(job)
        job.begin()
        self._waiting.append(job)
        return lambda: self._result(job)

    def forget(self, job: Callable[[], Any]) -> None:
        """Drop a gradient whose learner is gone, or has it."""
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
