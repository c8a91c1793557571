"""A gradient as a value: begun at one moment, computed then or later, alone or in a batch with those of others.

A gradient is a function of the weights at its start and of its minibatch. While it is under way, the model keeps those
weights (`Weights.held`), so that a world may compute it at any moment before its time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from murmur.core.source import Gradient, Gradients
from murmur.core.weights import Weights


class PendingGradient:
    """The gradient of minibatch n at the weights held when it begins; a call computes it alone.

    Attributes:
        source: Source that computes it.
        n: Number of the minibatch.
        before_backward: Called with the number of samples before the backward pass; None: not needed.
        version: Version of the weights at which it is taken, once it has begun.
    """

    def __init__(
        self, source: Gradients, n: int, weights: Weights, before_backward: Callable[[float], None] | None
    ) -> None:
        self.source, self.n, self.before_backward = source, n, before_backward
        self.version = 0
        self._weights = weights
        self._held = ExitStack()

    def begin(self) -> None:
        """Begin: from now on the model keeps its weights."""
        self.version = self._held.enter_context(self._weights.held())

    def end(self) -> None:
        """End: release the model's weights."""
        self._held.close()

    def __call__(self) -> Gradient:
        with self._weights.held() as self.version:
            return self.source.draw(self.n, self.before_backward)


ComputeBatch = Callable[[Sequence[PendingGradient]], list[Gradient]]  # computes pending gradients in one call, in order
