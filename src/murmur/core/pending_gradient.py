"""One gradient of one learner as a value: begun at one moment, computed then or later, alone or with those of others.

A gradient is a function of the weights at its start and of its minibatch. While it is under way the model keeps those
weights (`Weights.held`), so that a world may compute it at any moment before its seconds are over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from murmur.core.source import Gradient, Source
from murmur.core.weights import Weights


class PendingGradient:
    """The gradient of minibatch n at the weights of the moment when it begins; a call computes it alone.

    Attributes:
        source: whose gradient.
        n: the minibatch.
        before_backward: told the number of samples before the backward pass; None: nobody wants to know.
        version: of the weights that it is taken at, once it has begun.
    """

    def __init__(
        self, source: Source, n: int, weights: Weights, before_backward: Callable[[float], None] | None
    ) -> None:
        self.source, self.n, self.before_backward = source, n, before_backward
        self.version = 0
        self._weights = weights
        self._held = ExitStack()

    def begin(self) -> None:
        """From now on the model keeps its weights."""
        self.version = self._held.enter_context(self._weights.held())

    def end(self) -> None:
        """The gradient is there: the model may go on."""
        self._held.close()

    def __call__(self) -> Gradient:
        with self._weights.held() as self.version:
            return self.source.draw(self.n, self.before_backward)


Together = Callable[
    [Sequence[PendingGradient]], list[Gradient]
]  # gradients of drawings that have begun, in their order
