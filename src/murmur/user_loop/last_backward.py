"""The last backward pass of a step, behind which gradients are averaged where a strategy averages gradients.

A loop that accumulates has several backward passes a step, and only it knows which is the last one. Inside
`with me.last_backward():` a stretch of the gradient leaves as soon as it is complete; what never arrives, or came in an
earlier pass, leaves in step(), in the same order on all learners. What has left must not be changed any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from murmur.core.flat import Layout


class Behind:
    """Where a step's last backward pass stands.

    Attributes:
        samples: of the step, once its last backward pass has been told; None before.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.samples: float | None = None
        self._left: list[tuple[Tensor, Tensor, int]] = []  # tensor, its gradient, how often that had been written to

    @contextmanager
    def last(self, samples: float, start: Callable[[float], None] | None) -> Iterator[None]:
        """The last backward pass; `start` lets gradients leave, None where the strategy sends none.

        Raises:
            RuntimeError: this step has had its last one.
        """
        if self.samples is not None:
            raise RuntimeError("last_backward was used twice in one step: it stands around the last backward pass only")
        self.samples = samples
        if start is not None:
            start(samples)
        yield
        if start is not None:
            self._left = [(t, t.grad, t.grad._version) for t in self.layout.tensors if t.grad is not None]

    def check(self, scaled: bool) -> None:
        """Whether what has left is still what the step is made of.

        Raises:
            RuntimeError: gradients were changed since, or a loss scaler judges them only now.
        """
        if self.samples is not None and scaled:
            raise RuntimeError(
                "a loss scaler finds overflows only after the backward pass, when gradients have left: leave"
                " last_backward out where a GradScaler is used"
            )
        if any(t.grad is not g or g._version != version for t, g, version in self._left):
            raise RuntimeError(
                "gradients were changed after last_backward, when they had left already: leave it out where they are"
                " clipped, or where another backward pass follows"
            )

    def take(self) -> bool:
        """The step is taken: whether its gradients had begun to leave."""
        begun, self.samples, self._left = self.samples is not None, None, []
        return begun
