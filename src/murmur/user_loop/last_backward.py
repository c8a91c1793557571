"""Overlap of averaging with the last backward pass of a step, for strategies that average gradients.

A loop that accumulates has several backward passes per step, and only the loop knows the last one. Inside
`with me.last_backward():` a bucket of the gradient is sent as soon as it is complete. Gradients that are absent, or
came in an earlier pass, are sent in step(), in the same order on all learners. A gradient must not be changed once it
has been sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from murmur.core.flat import Layout
from murmur.core.torch_private import version_of


class Behind:
    """State of a step's last backward pass.

    Attributes:
        samples: Samples of the step, once its last backward pass has been announced; None before.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.samples: float | None = None
        self._left: list[tuple[Tensor, Tensor, int]] = []  # tensor, its gradient, version of the gradient when sent

    @contextmanager
    def last(self, samples: float, start: Callable[[float], None] | None) -> Iterator[None]:
        """Run the last backward pass; `start` starts the sums behind it, None if the strategy averages no gradients.

        Raises:
            RuntimeError: This step has had its last backward pass.
        """
        if self.samples is not None:
            raise RuntimeError(
                "last_backward was used twice in one step: use it for the last backward pass only, and call step() then"
            )
        self.samples = samples
        try:
            if start is not None:
                start(samples)
            yield
        except BaseException:
            self.samples = None  # the loop may take another minibatch in its place
            if start is not None:
                start(math.nan)
            raise
        if start is not None:
            self._left = [(t, t.grad, version_of(t.grad)) for t in self.layout.tensors if t.grad is not None]

    def told(self, samples: float | None) -> float:
        """Return the samples of the step, of which `step()` gives none or `samples`.

        Raises:
            ValueError: The last backward pass had others.
        """
        if self.samples is not None and samples not in (None, self.samples):
            raise ValueError(
                f"last_backward got {self.samples:g} samples, step {samples:g}, after the gradients had been sent with"
                f" the former: call last_backward(samples={samples:g}), and step() without samples"
            )
        return next((told for told in (self.samples, samples) if told is not None), 1.0)

    def check(self, scaled: bool) -> None:
        """Check that the gradients have not changed since they were sent.

        Raises:
            RuntimeError: They have changed, or a loss scaler is in use, which judges them only now.
        """
        if self.samples is not None and scaled:
            raise RuntimeError(
                "a loss scaler finds overflows only after the backward pass, when gradients have been sent: do not use"
                " last_backward with a GradScaler"
            )
        if any(t.grad is not g or version_of(g) != version for t, g, version in self._left):
            raise RuntimeError(
                "gradients were changed after last_backward, when they had already been sent: do not use it if you"
                " clip them, or if another backward pass follows"
            )

    def take(self) -> bool:
        """End the step; return True if its gradients had begun to be sent."""
        begun, self.samples, self._left = self.samples is not None, None, []
        return begun
