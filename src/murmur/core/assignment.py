"""Which minibatch is whose where learners go in step: no claim, no message, a pure function of the turn.

    position of learner to[i] in turn t   =   done + (t - since) len(to) + i
    number of the minibatch there         =   the position itself, or what has been moved there

A position is counted as behind once its turn is over. When a learner is lost, what it had not handed in moves to the
positions that come next: every minibatch is done, none twice, and all that are left know it without a word.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Assignment:
    """Minibatches dealt out in turns.

    Attributes:
        to: ranks of the learners that take part, in order.
        total: one past the last minibatch.
        done: minibatches that were behind when this deal began.
        since: turns that were over when it began.
        moved: numbers of minibatches that stand at the position of another one.
    """

    to: tuple[int, ...]
    total: int = sys.maxsize
    done: int = 0
    since: int = 0
    moved: Mapping[int, int] = field(default_factory=dict)

    def reached(self, turn: int) -> int:
        """Minibatches that are behind when so many turns are over."""
        return min(self.total, self.done + (turn - self.since) * len(self.to))

    def number(self, turn: int, rank: int) -> int | None:
        """The minibatch of a learner in a turn; None if it has none."""
        if rank not in self.to:
            return None
        position = self.done + (turn - self.since) * len(self.to) + self.to.index(rank)
        return self.at(position) if position < self.total else None

    def at(self, position: int) -> int:
        """The number of the minibatch at a position."""
        return self.moved.get(position, position)

    def anew(self, turn: int, done: int, to: Sequence[int]) -> Assignment:
        """From this turn on, deal what comes after the first `done` to these learners.

        Raises:
            ValueError: to nobody.
        """
        if not to:
            raise ValueError("minibatches must be dealt to at least one learner")
        return replace(self, to=tuple(to), done=done, since=turn)

    def without(self, begun: int, turn: int, missing: Collection[int], to: Sequence[int]) -> Assignment:
        """What the missing were dealt in the turns begun .. turn - 1 comes next; from now on deal to these."""
        first, end = self.reached(begun), self.reached(turn)
        lost = [p for p in range(first, end) if self.to[(p - self.done) % len(self.to)] in missing]
        again = {end - len(lost) + i: self.moved.get(p, p) for i, p in enumerate(lost)}
        later = {p: n for p, n in self.moved.items() if p >= end}
        return replace(self.anew(turn, end - len(lost), to), moved={**later, **again})

    def to_come(self, turn: int) -> dict[int, int]:
        """What has been moved and is still to come at the beginning of a turn."""
        return {p: n for p, n in self.moved.items() if p >= self.reached(turn)}
