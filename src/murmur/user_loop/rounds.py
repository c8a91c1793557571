"""Place of a user's loop in the round of its strategy, so that a saved loop goes on in the middle of a round.

A strategy is a coroutine, which cannot be saved. It can begin anew from its state between two rounds: weights at the
start of the round, and vectors of the strategy. A loop saved later in a round also holds the samples and loss of each
step since. A resumed run begins the round anew and gives the strategy these steps without a change of the weights.
The strategy is then where it was, with its own variables; the weights of the saved moment replace those of the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from murmur.core.assignment import Assignment
from murmur.core.facts import Facts
from murmur.core.learner import Gradient, Learner
from murmur.core.source import SKIPPED_SAMPLES
from murmur.user_loop.loop import Offer
from murmur.user_loop.source import LoopSource


@dataclass
class Round:
    """A round under way.

    Attributes:
        weights: Weights at its start, shape (P,).
        outer: Vectors of the strategy at its start.
        steps: Samples and loss of each step since.
        unused: Gradients since the latest step of the optimizer (of strategies that add several up), without the last.
    """

    weights: Tensor
    outer: dict[str, Tensor]
    steps: list[tuple[float, float]] = field(default_factory=list)
    unused: list[tuple[Tensor, list[bool]]] = field(default_factory=list)

    def described(self) -> dict[str, Any]:
        """Return the value as tensors, numbers, lists and dictionaries."""
        return {
            "weights": self.weights,
            "outer": dict(self.outer),
            "steps": [list(step) for step in self.steps],
            "unused": [[g, list(present)] for g, present in self.unused],
        }


class RoundSource(LoopSource):
    """Source of a user's loop that knows the round of its strategy.

    Attributes:
        learner: Learner that takes the gradients: that of the loop, or the leader that a strategy made of it.
    """

    learner: Learner
    _own: Learner
    _follows = False  # true if the rounds of this learner are followed
    _at_start = False  # true between the start of a round and its first gradient
    _round: Round | None = None
    _drawn: list[bool] | None = None  # tensors with a gradient in the latest one, while it is unused
    _repeating = False

    def follow(self, me: Learner, strategy: object) -> None:
        """Follow the rounds of a learner's strategy, unless each step is one."""
        self.learner = self._own = me
        self._follows = me.lock_step and Facts.of(strategy).sets_weights_every != 1

    async def boundary(self, me: Learner) -> None:
        await super().boundary(me)
        self.learner, self._at_start = me, True
        self._follows &= me is self._own  # a super-learner's members know no rounds, and its leader begins a new one

    def over(self, steps: int) -> bool:
        self._follows = False  # the strategy works in turns: each step is a round
        return super().over(steps)

    def draw(self, n: int, before_backward: Callable[[float], None] | None) -> Gradient:
        if self._follows:
            self._before_gradient()
        gradient = super().draw(n, before_backward)
        if self._round is not None:
            self._round.steps.append((gradient.samples, gradient.loss))
            self._drawn = gradient.present
        return gradient

    def _before_gradient(self) -> None:
        if self._at_start:
            me = self.learner
            outer = {name: vector.clone() for name, vector in me.outer_to_keep.items()}
            self._round = Round(me.weights.snapshot(), outer)
        elif self._round is not None and self._drawn is not None:
            self._round.unused.append((self._g.clone(), self._drawn))
        self._at_start, self._drawn = False, None

    def apply(self, g: Tensor, present: list[bool], staleness: int) -> None:
        if self._round is not None:
            self._round.unused.clear()
        self._drawn = None
        if self._repeating:
            self.clear()
        else:
            super().apply(g, present, staleness)

    @property
    def round(self) -> Round | None:
        """The round under way; None between two rounds, and if it is not known."""
        if self._at_start or not self._follows or self._round is None:
            return None
        unused = [] if self._drawn is None else [(self._g.clone(), self._drawn)]
        now = self._round
        return Round(now.weights, now.outer, list(now.steps), [*now.unused, *unused])

    @property
    def minibatches(self) -> int:
        """Minibatches of all learners so far, as far as this learner knows."""
        return self._claimed or self.assignment.reached(self.learner.steps)

    def go_on(self, minibatches: int) -> None:
        """Go on after this number of minibatches of all learners."""
        if self._own.lock_step:
            self.assignment = Assignment(tuple(range(self.group.size)), done=minibatches)
        else:
            self._claimed = minibatches

    def repeat(self, begun: Round, step: Callable[[], None]) -> None:
        """Let the strategy repeat the steps of a round, from its start, without a change of weights and counters.

        Args:
            begun: The round, up to the saved moment.
            step: Lets the strategy take the step that the loop offers.
        """
        self._repeating, counted = True, self.counters.described(0)
        first_unused = len(begun.steps) - len(begun.unused)
        try:
            for number, (samples, loss) in enumerate(begun.steps):
                self.clear()
                if number >= first_unused:
                    self.layout.hand_gradients(*begun.unused[number - first_unused])
                self.loop.offer = Offer(samples, None if math.isnan(loss) else loss, skipped=samples == SKIPPED_SAMPLES)
                step()
        finally:
            self._repeating = False
            self.counters.read(counted)
            self.clear()


def read_round(described: dict[str, Any], device: torch.device) -> Round:
    """Read the result of `Round.described`."""
    return Round(
        described["weights"].to(device),
        {name: vector.clone() for name, vector in described["outer"].items()},
        [(float(samples), float(loss)) for samples, loss in described["steps"]],
        [(g.to(device), [bool(there) for there in present]) for g, present in described["unused"]],
    )
