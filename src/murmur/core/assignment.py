"""Assignment of minibatches to lock-step learners: no claim, no message, a pure function of the turn.

    position of learner to[i] in turn t   =   done + (t - since) len(to) + i
    number of the minibatch there         =   the position itself, or the number moved there

A position counts as completed once its turn is over. When a learner is lost, its uncompleted minibatches move to the
next positions. Every minibatch is then done exactly once, and all remaining learners know the assignment without a
message.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Assignment:
    """Minibatches assigned in turns.

    Attributes:
        to: Ranks of the learners that take part, in order.
        total: One past the last minibatch.
        done: Minibatches completed when this assignment began.
        since: Turns completed when it began.
        moved: Numbers of the minibatches that stand at another position, by position.
    """

    to: tuple[int, ...]
    total: int = sys.maxsize
    done: int = 0
    since: int = 0
    moved: Mapping[int, int] = field(default_factory=dict)

    def reached(self, turn: int) -> int:
        """Return the minibatches completed when so many turns are over."""
        return min(self.total, self.done + (turn - self.since) * len(self.to))

    def number(self, turn: int, rank: int) -> int | None:
        """Return the minibatch of a learner in a turn; None if it has none."""
        if rank not in self.to:
            return None
        position = self.done + (turn - self.since) * len(self.to) + self.to.index(rank)
        return self.at(position) if position < self.total else None

    def at(self, position: int) -> int:
        """Return the number of the minibatch at a position."""
        return self.moved.get(position, position)

    def anew(self, turn: int, done: int, to: Sequence[int]) -> Assignment:
        """From this turn on, assign all minibatches after the first `done` to these learners.

        Raises:
            ValueError: There are no learners.
        """
        if not to:
            raise ValueError("minibatches must be assigned to at least one learner")
        return replace(self, to=tuple(to), done=done, since=turn)

    def without(self, begun: int, turn: int, missing: Collection[int], to: Sequence[int]) -> Assignment:
        """Move the minibatches of the missing learners in turns begun .. turn - 1 to the next positions.

        From `turn` on, minibatches are assigned to the learners `to`.
        """
        first, end = self.reached(begun), self.reached(turn)
        lost = [p for p in range(first, end) if self.to[(p - self.done) % len(self.to)] in missing]
        again = {end - len(lost) + i: self.moved.get(p, p) for i, p in enumerate(lost)}
        later = {p: n for p, n in self.moved.items() if p >= end}
        return replace(self.anew(turn, end - len(lost), to), moved={**later, **again})

    def to_come(self, turn: int) -> dict[int, int]:
        """Return the moved minibatches that are still to come at the beginning of a turn."""
        return {p: n for p, n in self.moved.items() if p >= self.reached(turn)}
