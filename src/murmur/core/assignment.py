"""Assignment of minibatches to lock-step learners: no claim, no message, a pure function of the turn.

    position of learner to[i] in turn t   =   done + (t - since) len(to) + i
    number of the minibatch there         =   the position itself, or the number moved there

A position counts as completed once its turn is over. When a learner is lost, its uncompleted minibatches move to the
next positions, so that every minibatch is done exactly once.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

UNKNOWN = sys.maxsize


@dataclass(frozen=True)
class Assignment:
    """Minibatches assigned in turns.

    Attributes:
        to: Ranks of the learners that take part, in order.
        total: One past the last minibatch; `UNKNOWN` where the learners' own loops bring them.
        done: Minibatches completed when this assignment began.
        since: Turns completed when it began.
        moved: Numbers of the minibatches that stand at another position, by position.
    """

    to: tuple[int, ...]
    total: int = UNKNOWN
    done: int = 0
    since: int = 0
    moved: Mapping[int, int] = field(default_factory=dict)

    def reached(self, turn: int) -> int:
        """Return the minibatches completed when so many turns are over."""
        return min(self.total, self.done + (turn - self.since) * len(self.to))

    def has_left(self, turn: int) -> bool:
        """Return True if minibatches of a known budget are left; loops of users' own end by themselves."""
        return self.reached(turn) < self.total < UNKNOWN

    def number(self, turn: int, rank: int) -> int | None:
        """Return the minibatch of a learner in a turn; None if it has none."""
        if rank not in self.to:
            return None
        position = self.done + (turn - self.since) * len(self.to) + self.to.index(rank)
        return self.at(position) if position < self.total else None

    def at(self, position: int) -> int:
        return self.moved.get(position, position)

    def anew(self, turn: int, done: int, to: Sequence[int]) -> Assignment:
        """From this turn on, assign all minibatches after the first `done` to these learners, at least one."""
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


class Turns:
    """Turns of the learner of a rank: the minibatches assigned to it, and how far all learners have come.

    Attributes:
        assignment: Minibatches assigned to learners in lock-step.
        turn: Turn of its latest gradient.
        claimed: Minibatches claimed by all learners, as far as the claims of this one show.
    """

    def __init__(self, assignment: Assignment, rank: int) -> None:
        self.assignment, self._rank = assignment, rank
        self.turn = self.claimed = 0

    def number(self, turn: int) -> int | None:
        """Return the minibatch of this learner in a turn; None if it has none."""
        return self.assignment.number(turn, self._rank)

    def begin(self, turn: int) -> int | None:
        """Begin a turn, and return the minibatch of this learner in it; None if it has none."""
        self.turn = turn
        return self.number(turn)

    def claim(self, claim: range, turn: int) -> None:
        """Begin a turn with a claim on minibatches."""
        self.turn = turn
        self.claimed = max(self.claimed, claim.stop)

    def reached(self, turn: int) -> int:
        return self.assignment.reached(turn)

    @property
    def minibatches(self) -> int:
        """Minibatches of all learners so far, as far as this learner knows."""
        return self.claimed or self.reached(self.turn)
