"""Bad numbers of a learner: losses, gradients, steps and weights that are not finite.

A minibatch with bad numbers has no weight in any mean. A learner whose weights are not finite waits for finite ones of
the others, and its optimizer then starts again. The engine and user loops share these checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from murmur.core.flat import Layout, is_finite
from murmur.core.source import SKIPPED_SAMPLES, Gradient
from murmur.engine.counters import Counters


class BadNumbers:
    """Checks of one learner's gradients, steps and weights.

    Attributes:
        broken: True if the weights were not finite at the last check.

    Args:
        layout: Trainable tensors of the learner's model.
        counters: Counters of the learner.
        learners: Number of learners; one that is alone gets no weights from others.
    """

    def __init__(self, layout: Layout, counters: Counters, learners: int) -> None:
        self.layout, self.counters, self.learners = layout, counters, learners
        self.broken = False

    def judge(self, n: int, drawn: Gradient, whole: bool) -> Gradient:
        """Return the gradient of minibatch n; one without weight if its loss is not finite.

        An element that is not finite has the same effect if the gradient is `whole`. Hooks take one that is not.

        Raises:
            FloatingPointError: Too many minibatches in a row had bad numbers.
        """
        if not math.isfinite(drawn.loss):
            self._skip_or_wait(n, f"the loss is {drawn.loss}")
        elif whole and not is_finite(drawn.g):
            self.counters.skip(n, f"the gradient is not finite, at a loss of {drawn.loss:.4g}")
        else:
            self.counters.good(drawn.loss)
            return drawn
        return self._weightless(drawn)

    def judge_without_loss(self, n: int, drawn: Gradient) -> Gradient:
        """Return the gradient of minibatch n, whose loss is unknown; one without weight if it is not finite.

        Raises:
            FloatingPointError: As for `judge`.
        """
        if is_finite(drawn.g):
            self.counters.good(math.nan)
            return drawn
        self._skip_or_wait(n, "the gradient is not finite")
        return self._weightless(drawn)

    def _skip_or_wait(self, n: int, what: str) -> None:
        self.broken = not is_finite(self.layout.gather())
        if self.broken and self.learners > 1:
            self.counters.wait(n)
        else:
            self.counters.skip(n, what)

    def _weightless(self, drawn: Gradient) -> Gradient:
        drawn.g.zero_()
        return Gradient(drawn.g, [False] * len(drawn.present), SKIPPED_SAMPLES, self.counters.loss, self.broken)

    def allow_step(self, g: Tensor) -> bool:
        """True if g is finite; else the step is counted as left out.

        Raises:
            FloatingPointError: Too many steps in a row were left out.
        """
        if not is_finite(g):  # a mean over all learners, with the same bits on each
            self.counters.skip_step()
            return False
        self.counters.bad_steps = 0
        return True

    def end_round(self, restart: Callable[[], None]) -> None:
        """Restart the optimizer if finite weights have come in place of bad ones; count the round if they have not.

        Raises:
            FloatingPointError: Too many rounds in a row brought no finite weights.
        """
        if self.broken and is_finite(self.layout.gather()):
            restart()  # the optimizer's state that led to these weights must not be kept
        elif self.broken:
            self.counters.still_broken()

    def restarted(self) -> None:
        """Count a restart of the optimizer that followed bad weights.

        Raises:
            FloatingPointError: Too many in a row with little training between.
        """
        if self.broken and is_finite(self.layout.gather()):
            self.broken = False
            self.counters.replace()
