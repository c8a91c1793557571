"""Place of a user's loop in the round of its strategy, so that a saved loop goes on in the middle of a round.

A strategy is a coroutine, which cannot be saved. It can begin anew from its state between two rounds: weights at the
start of the round, and vectors of the strategy. A loop saved later in a round also holds the samples and loss of each
step since. A resumed run begins the round anew and gives the strategy these steps without a change of the weights.
The strategy is then where it was, with its own variables; the weights of the saved moment replace those of the start.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from murmur.core.assignment import Assignment
from murmur.core.buffers import Values
from murmur.core.counted import counted
from murmur.core.facts import Facts
from murmur.core.learner import Gradient, Learner
from murmur.core.local_steps import LocalSteps
from murmur.core.source import SKIPPED_SAMPLES
from murmur.user_loop.agreement import check_first
from murmur.user_loop.loop import Offer, telling_who_is_lost
from murmur.user_loop.source import LoopSource

log = logging.getLogger(__name__)


@dataclass
class Round:
    """A round under way.

    Attributes:
        weights: Weights at its start, shape (P,); None for a strategy that does not read them.
        outer: Vectors of the strategy at its start.
        steps: Samples and loss of each step since.
        unused: Gradients since the latest step of the optimizer (of strategies that add several up), without the last.
    """

    weights: Tensor | None
    outer: dict[str, Tensor]
    steps: list[tuple[float, float]] = field(default_factory=list)
    unused: list[tuple[Tensor, list[bool]]] = field(default_factory=list)

    def described(self) -> dict[str, Any]:
        return {
            "weights": None if self.weights is None else self.weights.clone(),
            "outer": {name: vector.clone() for name, vector in self.outer.items()},
            "steps": [list(step) for step in self.steps],
            "unused": [[g, list(present)] for g, present in self.unused],
        }


class RoundSource(LoopSource):
    """Source of a user's loop that knows the round of its strategy.

    Attributes:
        learner: Learner that takes the gradients.
        strategy: Its strategy.
    """

    learner: Learner
    strategy: object
    _local: LocalSteps  # its gradients and steps at the start
    _follows = False  # true if the rounds of this learner are followed
    _reads_weights = True
    _at_start = False  # true between the start of a round and its first gradient
    _round: Round | None = None
    _drawn: list[bool] | None = None  # tensors with a gradient in the latest one, while it is unused
    _repeating = _clip_is_checked = False

    def follow(self, me: Learner, strategy: object) -> None:
        """Follow the rounds of a learner's strategy, unless each step is one."""
        self.learner, self._local, self.strategy = me, me.local, strategy
        facts = Facts.of(strategy)
        self._follows = me.lock_step and facts.sets_weights_every != 1
        self._reads_weights = facts.reads_weights

    def clip(self, norm: float | None) -> None:
        """Set the largest norm of gradients; in lock-step all learners have the same in their first step."""
        super().clip(norm)
        checked, self._clip_is_checked = self._clip_is_checked, True
        if not checked and self.learner.lock_step and not self.learner.seat.late:
            with telling_who_is_lost(self.group.rank):
                check_first(self.group, "clip", None if norm is None else float(norm))

    async def boundary(self, me: Learner) -> None:
        await super().boundary(me)
        self._at_start = True
        self._follows &= me.local is self._local  # a super-learner has no rounds here, and its leader begins a new one

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
            # The memory of the round before is used again.
            before = self._round
            outer = {
                name: copied_to(None if before is None else before.outer.get(name), vector)
                for name, vector in me.outer.to_save.items()
            }
            weights = None
            if self._reads_weights:
                weights = me.weights.snapshot(None if before is None else before.weights)
            self._round = Round(weights, outer)
        elif self._round is not None and self._drawn is not None:
            self._round.unused.append((self._g.clone(), self._drawn))
        self._at_start, self._drawn = False, None

    def apply(self, g: Tensor, present: list[bool], staleness: int) -> None:
        if self._round is not None:
            self._round.unused.clear()
        self._drawn = None
        if self._repeating:
            self.layout.clear_gradients()
        else:
            super().apply(g, present, staleness)

    @property
    def round(self) -> Round | None:
        if self._at_start or not self._follows or self._round is None:
            return None
        unused = [] if self._drawn is None else [(self._g.clone(), self._drawn)]
        now = self._round
        return Round(now.weights, now.outer, list(now.steps), [*now.unused, *unused])

    @property
    def steps(self) -> int:
        return self.counters.steps + self.learner.steps

    @property
    def minibatches(self) -> int:
        return self.turns.claimed or self.turns.reached(self.learner.steps)

    def go_on(self, minibatches: int) -> None:
        if self.learner.lock_step:
            self.turns.assignment = Assignment(tuple(range(self.group.size)), done=minibatches)
        else:
            self.turns.claimed = minibatches

    def repeat(self, begun: Round, step: Callable[[], None]) -> None:
        """Let the strategy repeat the steps of a round, from its start, without a change of weights and counters."""
        self._repeating, before = True, self.counters.described(0)
        first_unused = len(begun.steps) - len(begun.unused)
        try:
            for number, (samples, loss) in enumerate(begun.steps):
                self.layout.clear_gradients()
                if number >= first_unused:
                    self.layout.hand_gradients(*begun.unused[number - first_unused])
                self.loop.offer = Offer(samples, None if math.isnan(loss) else loss, skipped=samples == SKIPPED_SAMPLES)
                step()
        finally:
            self._repeating = False
            self.counters.read(before)
            self.layout.clear_gradients()

    def state(self, buffers: Values) -> dict[str, Any]:
        begun = self.round
        with self.learner.outer.steady:
            weights = self.loop.weights.snapshot()
            outer = {name: vector.clone() for name, vector in self.learner.outer.to_save.items()}
        return {
            "weights": weights,
            "buffers": buffers,
            "strategy": outer,
            "round": None if begun is None else begun.described(),
            "learners": self.group.size,
            "minibatches": self.minibatches,
            "claims": self.group.loops.claims,
            "counters": self.counters.described(0),
        }

    def load(self, state: Mapping[str, Any], step: Callable[[], None]) -> bool:
        """Resume from a state; return True if the strategy has begun and repeated a part of a round, by `step`."""
        begun = None if state["round"] is None else read_round(state["round"], self.layout.device)
        weights = state["weights"].to(self.layout.device)
        minibatches = int(state["minibatches"])
        self.buffers.put(state["buffers"])
        self.group.loops.claims = self.group.loops.claims_before = self._share(state, minibatches)
        outer = state["strategy"] if begun is None else begun.outer
        self.learner.outer.update({name: vector.clone() for name, vector in outer.items()})
        # The steps of the round count once more as they are repeated, by the present number of learners.
        repeated = 0 if begun is None else len(begun.steps) * self.group.size
        self.go_on(max(0, minibatches - repeated))
        self.counters.read(state["counters"])
        self.learner.role.apart = True
        self.learner.weights.set_(weights if begun is None or begun.weights is None else begun.weights)
        if begun is None:
            return False
        self.repeat(begun, step)
        self.loop.weights.set_(weights)
        self.layout.scatter(weights)  # the model too, which keeps its weights while the strategy waits for a step
        return True

    def _share(self, state: Mapping[str, Any], minibatches: int) -> int:
        before, now, rank = int(state["learners"]), self.group.size, self.group.rank
        if before == now:
            return int(state["claims"])
        log.warning(
            "learner %d resumes the state of one of %s, and there are %d now: not the bits of an uninterrupted run",
            *(rank, counted(before, "learner"), now),
        )
        return minibatches * (rank + 1) // now - minibatches * rank // now


def copied_to(memory: Tensor | None, vector: Tensor) -> Tensor:
    """Return a copy of a vector, in the memory of an old one if that is alike."""
    if memory is None or (memory.shape, memory.dtype, memory.device) != (vector.shape, vector.dtype, vector.device):
        return vector.clone()
    return memory.copy_(vector)


def read_round(described: dict[str, Any], device: torch.device) -> Round:
    return Round(
        None if described["weights"] is None else described["weights"].to(device),
        {name: vector.clone() for name, vector in described["outer"].items()},
        [(float(samples), float(loss)) for samples, loss in described["steps"]],
        [(g.to(device), [bool(there) for there in present]) for g, present in described["unused"]],
    )
