"""Counters of a learner, and its checks for losses, gradients, steps and weights that are not finite.

A minibatch with such numbers is skipped: it has no weight in any mean. One is an accident of the data; many in a row
mean that training has diverged. A learner whose weights are not finite waits for finite ones of the others, and its
optimizer then starts again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from murmur.core.counted import counted
from murmur.core.flat import Layout, is_finite
from murmur.core.group import Group
from murmur.core.source import SKIPPED_SAMPLES, Gradient

log = logging.getLogger(__name__)
BETWEEN = 10
NEWEST = 0.1  # weight of the latest loss in the mean of recent ones
RISE = 0.5  # relative rise of a loss that counts as divergence
ADVICE = "training has diverged. Lower the learning rate, warm it up, or bound gradients with max_gradient_norm"


@dataclass
class Counters:
    """Progress counters of a learner; a checkpoint saves all of them.

    Attributes:
        most_in_a_row: Number of consecutive skipped minibatches that ends the run.
        loss: Mean loss per sample of the latest minibatch that was not skipped; nan before the first.
        recent_loss: Exponential mean of the losses; the newest has weight 0.1.
        rate: Learning rate of the latest step; nan before the first.
        steps: Number of gradients of this learner in earlier launches.
        skipped: Number of minibatches whose loss or gradient was not finite.
        replaced: Number of times that weights of other learners replaced its own, which were not finite.
        replaced_in_a_row: Number of the latest ones with few good minibatches between (see `BETWEEN`).
        good_since: Number of good minibatches since then.
        rounds_broken: Number of rounds since the weights were found not to be finite.
        bad_steps: Number of the latest consecutive steps left out because their gradient was not finite.
    """

    most_in_a_row: int
    loss: float = math.nan
    first_loss: float = math.nan
    recent_loss: float = math.nan
    rate: float = math.nan
    steps: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    replaced: int = 0
    replaced_in_a_row: int = 0
    good_since: int = 0
    rounds_broken: int = 0
    bad_steps: int = 0

    def good(self, loss: float) -> None:
        """Count a minibatch with finite loss and gradient; a loss that is not known is nan."""
        self.loss = loss
        if math.isnan(self.first_loss):
            self.first_loss = self.recent_loss = loss
        if not math.isnan(loss):
            self.recent_loss += NEWEST * (loss - self.recent_loss)
        self.skipped_in_a_row = 0
        self.good_since += 1

    def diverges(self, heldout: float, lowest: float) -> bool:
        """True if training has diverged, at a held-out loss now and the lowest one so far, including this."""
        if not math.isfinite(heldout):
            return True
        if heldout > lowest:
            return self.recent_loss > self.first_loss and heldout - lowest > RISE * abs(lowest)
        return self.first_loss > 0 and self.recent_loss > (1 + RISE) * self.first_loss

    def skip(self, n: int, what: str) -> None:
        self.skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= self.most_in_a_row:
            before = self.skipped_in_a_row - 1
            others = f", as it was of the {before} minibatches before" if before else ""
            raise FloatingPointError(f"minibatch {n}: {what}{others}: {ADVICE}")
        log.warning("minibatch %d is skipped: %s (%d skipped so far)", n, what, self.skipped)

    def wait(self, n: int) -> None:
        self.skipped += 1
        log.warning("minibatch %d is skipped: the weights are not finite (%d skipped so far)", n, self.skipped)

    def still_broken(self) -> None:
        self.rounds_broken += 1
        if self.rounds_broken >= self.most_in_a_row:
            raise FloatingPointError(
                f"the weights are not finite, and no finite ones came in {self.rounds_broken} rounds: {ADVICE}"
            )

    def skip_step(self) -> None:
        self.skipped += 1
        self.bad_steps += 1
        if self.bad_steps >= self.most_in_a_row:
            raise FloatingPointError(
                f"the gradient of {counted(self.bad_steps, 'step')} in a row is not finite: {ADVICE}"
            )
        log.warning("a step is left out: its gradient is not finite (%s so far)", counted(self.skipped, "minibatch"))

    def replace(self) -> None:
        self.replaced += 1
        self.replaced_in_a_row = self.replaced_in_a_row + 1 if self.good_since < BETWEEN * self.most_in_a_row else 1
        self.good_since = self.skipped_in_a_row = self.rounds_broken = 0
        if self.replaced_in_a_row >= self.most_in_a_row:
            raise FloatingPointError(
                f"the weights were not finite, {self.replaced_in_a_row} times in a row with little training between,"
                f" and were replaced by the other learners': {ADVICE}"
            )
        log.warning("weights that were not finite are replaced by the others' (replacement %d)", self.replaced)

    def share(self, group: Group) -> None:
        group.count("skipped", self.skipped)
        group.count("replaced", self.replaced)

    def described(self, steps: int) -> dict[str, Any]:
        """Return the counters as JSON types, with `steps` more of this launch."""
        kept = {name: value for name, value in vars(self).items() if name != "most_in_a_row"}
        kept["steps"] = self.steps + steps
        return {name: value if math.isfinite(value) else None for name, value in kept.items()}

    def read(self, described: Mapping[str, Any]) -> None:
        for name, value in described.items():
            if not isinstance(value, int | float | None):
                raise ValueError(f"the counter {name!r:.40} is {value!r:.40}, not a number")
            setattr(self, name, math.nan if value is None else value)


def tell_bad_numbers(group: Group) -> None:
    """Log one line about the skipped minibatches and replaced weights of all learners, if there were any."""
    skipped, replaced = group.count("skipped"), group.count("replaced")
    if skipped or replaced:
        log.warning(
            "%s skipped, whose losses or gradients were not finite; %s of weights that were not finite",
            *(counted(skipped, "minibatch"), counted(replaced, "replacement")),
        )


class BadNumbers:
    """Checks of one learner's gradients, steps and weights, which raise FloatingPointError if too many are bad.

    Attributes:
        broken: True if the weights were not finite at the last check.
        agreed: Returns True if a check holds on all processes that hold parts of the weights.
    """

    def __init__(self, layout: Layout, counters: Counters, learners: int) -> None:
        self.layout, self.counters, self.learners = layout, counters, learners
        self.broken = False
        self.agreed: Callable[[bool], bool] = bool

    def judge(self, n: int, drawn: Gradient, finite: bool) -> Gradient:
        """Return the gradient of minibatch n; one without weight if its loss or an element is not finite.

        An element counts only if `finite` is false: hooks take a gradient that they have passed on already.
        """
        if not math.isfinite(drawn.loss):
            self._skip_or_wait(n, f"the loss is {drawn.loss}")
        elif not finite:
            self.counters.skip(n, f"the gradient is not finite, at a loss of {drawn.loss:.4g}")
        else:
            self.counters.good(drawn.loss)
            return drawn
        return replace(self.weightless(drawn.g), broken=self.broken)

    def judge_without_loss(self, n: int, drawn: Gradient, finite: bool) -> Gradient:
        """Return the gradient of minibatch n, whose loss is unknown; one without weight if it is not finite."""
        if finite:
            self.counters.good(math.nan)
            return drawn
        self._skip_or_wait(n, "the gradient is not finite")
        return replace(self.weightless(drawn.g), broken=self.broken)

    @property
    def _finite(self) -> bool:
        return self.agreed(is_finite(self.layout.gather()))

    def _skip_or_wait(self, n: int, what: str) -> None:
        self.broken = not self._finite
        if self.broken and self.learners > 1:
            self.counters.wait(n)
        else:
            self.counters.skip(n, what)

    def weightless(self, g: Tensor) -> Gradient:
        g.zero_()
        return Gradient(g, [False] * len(self.layout.tensors), SKIPPED_SAMPLES, self.counters.loss)

    def allow_step(self, finite: bool) -> bool:
        """Return True for a finite gradient of a step; count another one, a mean with the same bits on all learners."""
        if not finite:
            self.counters.skip_step()
            return False
        self.counters.bad_steps = 0
        return True

    def end_round(self, restart: Callable[[], None]) -> None:
        """Restart the optimizer if finite weights have come in place of bad ones; count the round if they have not."""
        if self.broken and self._finite:
            restart()  # the optimizer's state that led to these weights must not be kept
        elif self.broken:
            self.counters.still_broken()

    def restarted(self) -> None:
        """Count a restart of the optimizer that followed bad weights."""
        if self.broken and self._finite:
            self.broken = False
            self.counters.replace()
