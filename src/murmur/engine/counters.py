"""Counters of a learner, and the limit on non-finite losses and gradients.

A minibatch whose loss or gradient is not finite is skipped: one such minibatch is an accident of the data, many in a
row are a model that has diverged.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from murmur.core.group import Group

log = logging.getLogger(__name__)
BETWEEN = 10
NEWEST = 0.1  # weight of the latest loss in the mean of recent ones
RISE = 0.5  # share by which a loss has to rise to count as diverging
ADVICE = "training has diverged. Lower the learning rate, warm it up, or bound gradients with max_gradient_norm"


@dataclass
class Counters:
    """Progress counters of a learner; a checkpoint saves all of them.

    Attributes:
        most_in_a_row: so many minibatches skipped one after the other end the run.
        loss: mean per sample of the latest minibatch that was not skipped; nan before the first.
        first_loss: Loss of the first minibatch of the run.
        recent_loss: mean of the latest losses, the newest weighs a tenth.
        rate: learning rate of the latest step; nan before the first.
        steps: gradients drawn by this learner, in the launches before this one.
        skipped: minibatches whose loss or gradient was not finite.
        skipped_in_a_row: the latest of them.
        replaced: times that its weights were not finite and it took over the others'.
        replaced_in_a_row: the latest of them, with fewer than `BETWEEN` times `most_in_a_row` good minibatches between.
        good_since: good minibatches since then.
        rounds_broken: rounds that have passed since the weights were found not to be finite.
        bad_steps: the latest steps that were left out, their gradient not being finite.
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
        """A minibatch gave finite numbers."""
        self.loss = loss
        if math.isnan(self.first_loss):
            self.first_loss = self.recent_loss = loss
        self.recent_loss += NEWEST * (loss - self.recent_loss)
        self.skipped_in_a_row = 0
        self.good_since += 1

    def diverges(self, heldout: float, lowest: float) -> bool:
        """True if training has diverged: loss worse than at the beginning, and held-out loss worse than before.

        Args:
            heldout: the held-out loss now.
            lowest: of all so far, this one too.
        """
        if not math.isfinite(heldout):
            return True
        if heldout > lowest:
            return self.recent_loss > self.first_loss and heldout - lowest > RISE * abs(lowest)
        return self.first_loss > 0 and self.recent_loss > (1 + RISE) * self.first_loss

    def skip(self, n: int, what: str) -> None:
        """Minibatch n is skipped, for what it gave.

        Raises:
            FloatingPointError: too many in a row; with advice.
        """
        self.skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= self.most_in_a_row:
            before = self.skipped_in_a_row - 1
            others = f", as it was of the {before} minibatches before" if before else ""
            raise FloatingPointError(f"minibatch {n}: {what}{others}: {ADVICE}")
        log.warning("minibatch %d is skipped: %s (%d skipped so far)", n, what, self.skipped)

    def wait(self, n: int) -> None:
        """Minibatch n is skipped because this learner's weights are not finite: the others' will come."""
        self.skipped += 1
        log.warning("minibatch %d is skipped: the weights are not finite (%d skipped so far)", n, self.skipped)

    def still_broken(self) -> None:
        """A round has passed, and the weights are not finite yet.

        Raises:
            FloatingPointError: as so often before; with advice.
        """
        self.rounds_broken += 1
        if self.rounds_broken >= self.most_in_a_row:
            raise FloatingPointError(
                f"the weights are not finite, and no other learner's came in {self.rounds_broken} rounds: {ADVICE}"
            )

    def skip_step(self) -> None:
        """A step is left out: the learners' mean gradient is not finite.

        Raises:
            FloatingPointError: too many in a row; with advice.
        """
        self.skipped += 1
        self.bad_steps += 1
        if self.bad_steps >= self.most_in_a_row:
            raise FloatingPointError(f"the gradient of {self.bad_steps} steps in a row is not finite: {ADVICE}")
        log.warning("a step is left out: its gradient is not finite (%d minibatches skipped so far)", self.skipped)

    def replace(self) -> None:
        """The weights were not finite, and the others' have taken their place.

        Raises:
            FloatingPointError: too many in a row; with advice.
        """
        self.replaced += 1
        self.replaced_in_a_row = self.replaced_in_a_row + 1 if self.good_since < BETWEEN * self.most_in_a_row else 1
        self.good_since = self.skipped_in_a_row = self.rounds_broken = 0
        if self.replaced_in_a_row >= self.most_in_a_row:
            raise FloatingPointError(
                f"the weights were not finite, {self.replaced_in_a_row} times in a row with little training between,"
                f" and were replaced by the other learners': {ADVICE}"
            )
        log.warning("weights that were not finite were replaced by the others' (%d times so far)", self.replaced)

    def share(self, group: Group) -> None:
        """At the end of a run: count with the others."""
        group.count("skipped", self.skipped)
        group.count("replaced", self.replaced)

    def described(self, steps: int) -> dict[str, Any]:
        """In JSON's terms; `steps` is of this launch."""
        kept = {name: value for name, value in vars(self).items() if name != "most_in_a_row"}
        kept["steps"] = self.steps + steps
        return {name: value if math.isfinite(value) else None for name, value in kept.items()}

    def read(self, described: Mapping[str, Any]) -> None:
        """Go on from what `described` gave."""
        for name, value in described.items():
            setattr(self, name, math.nan if value is None else value)


def tell_bad_numbers(group: Group) -> None:
    """One line about what all learners have counted, if there was anything."""
    skipped, replaced = group.count("skipped"), group.count("replaced")
    if skipped or replaced:
        log.warning(
            "%d minibatches were skipped, their losses or gradients not being finite; weights that were not finite were"
            " replaced %d times",
            skipped,
            replaced,
        )
