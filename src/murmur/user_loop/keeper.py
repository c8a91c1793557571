"""Saved state of one learner of a user's loop, except for the optimizer, and the resumption of a run from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from murmur.core.buffers import Values
from murmur.core.counted import counted
from murmur.core.flat import Layout
from murmur.core.learner import Learner
from murmur.user_loop.group import JoinedGroup
from murmur.user_loop.loop import Loop
from murmur.user_loop.rounds import RoundSource, read_round

log = logging.getLogger(__name__)


class Keeper:
    """Saves and restores the state of one learner.

    Args:
        me: Learner of the loop.
        loop: State of the loop, with the live weights.
        source: Source of its gradients.
        group: Group of all learners.
    """

    def __init__(self, me: Learner, loop: Loop, source: RoundSource, group: JoinedGroup) -> None:
        self.me, self.loop, self.source, self.group = me, loop, source, group

    def state(self, buffers: Values) -> dict[str, Any]:
        """Return the state as tensors, numbers, lists and dictionaries.

        Args:
            buffers: Copies of this learner's buffers that may have changed since the start.
        """
        begun = self.source.round
        with self.source.learner.steady:
            weights = self.loop.weights.snapshot()
            outer = {name: vector.clone() for name, vector in self.source.learner.outer_to_keep.items()}
        return {
            "weights": weights,
            "buffers": buffers,
            "strategy": outer,
            "round": None if begun is None else begun.described(),
            "learners": self.group.size,
            "minibatches": self.source.minibatches,
            "claims": self.group.loops.claims,
            "counters": self.source.counters.described(0),
        }

    def load(self, state: Mapping[str, Any], step: Callable[[], None]) -> bool:
        """Resume from a state; return True if the strategy has begun and repeated a part of a round.

        Args:
            state: The result of `state`.
            step: Lets the strategy take the step that the loop offers.
        """
        layout, source = self.source.layout, self.source
        begun = None if state["round"] is None else read_round(state["round"], layout.device)
        weights = state["weights"].to(layout.device)
        minibatches = int(state["minibatches"])
        if isinstance(state["buffers"], Tensor):  # states of older versions hold vectors
            for kind, buffers in (("buffers", Layout.buffers), ("integers", Layout.integers)):
                buffers(source.model).scatter(state[kind].to(buffers(source.model).device))
        else:
            source.buffers.put(state["buffers"])
        self.group.loops.claims = self.group.loops.claims_before = self._share(state, minibatches)
        outer = state["strategy"] if begun is None else begun.outer
        self.me.outer.update({name: vector.clone() for name, vector in outer.items()})
        # The steps of the round count once more as they are repeated, by the present number of learners.
        repeated = 0 if begun is None else len(begun.steps) * self.group.size
        source.go_on(max(0, minibatches - repeated))
        source.counters.read(state["counters"])
        self.me.apart = True
        self.me.weights.set_(weights if begun is None else begun.weights)
        if begun is None:
            return False
        source.repeat(begun, step)
        self.loop.weights.set_(weights)
        layout.scatter(weights)  # the model too, which keeps its weights while the strategy waits for a step
        return True

    def _share(self, state: Mapping[str, Any], minibatches: int) -> int:
        """Return the claims of this learner in earlier launches."""
        before, now, rank = int(state["learners"]), self.group.size, self.group.rank
        if before == now:
            return int(state["claims"])
        log.warning(
            "learner %d resumes the state of one of %s, and there are %d now: not the bits of an uninterrupted run",
            *(rank, counted(before, "learner"), now),
        )
        return minibatches * (rank + 1) // now - minibatches * rank // now
