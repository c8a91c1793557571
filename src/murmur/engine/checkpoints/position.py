"""Position of a run without lock-step, combined from the claims that each learner knew when it saved its part.

An evaluation point is a number of assigned minibatches. Each learner saves at its first claim beyond the point, at a
moment of its own. A minibatch before the point may therefore be in no weights yet, and one beyond it in some weights.

    again    before the point, unfinished when a learner saved, and not in the weights that make up the model
    early    beyond the point, and in those weights

If several servers keep a part of these weights each, a minibatch is in them if it is in all parts. One that is in some
is repeated, and those that have it leave it out.

A launch that resumes there first repeats the minibatches of `again`, then computes all beyond the point except those of
`early`. Positions are counted on: `Position.done` of them are complete, and `moved` lists the next minibatches.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

MOST_BEYOND = 10_000_000  # positions that can have begun before the slowest learner saved


@dataclass(frozen=True)
class Position:
    """Position from which a launch resumes.

    Attributes:
        done: Number of minibatches already done.
        moved: Minibatches at the positions from `done` on, as far as they differ from the positions themselves.
    """

    done: int = 0
    moved: Mapping[int, int] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """Return the value as JSON types."""
        return {"done": self.done, "moved": sorted(self.moved.items())}

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> Position:
        """Read the result of `described`."""
        (done,) = _positions([described["done"]])
        return cls(done, _moved(described["moved"]))


@dataclass(frozen=True)
class Claims:
    """Claims known to one learner when it saved; all are positions.

    Attributes:
        unfinished: Positions before the point that were claimed and, as far as it knew, not complete.
        done: Positions that it completed itself, beyond the point or recently, if its weights are part of the model.
        moved: `Position.moved` of its launch.
        completed_by: Number of learners that each complete a minibatch: 1, or the number of servers with a part each.
    """

    unfinished: Sequence[int] = ()
    done: Sequence[int] = ()
    moved: Mapping[int, int] = field(default_factory=dict)
    completed_by: int = 1

    def described(self) -> dict[str, Any]:
        """Return the value as JSON types."""
        found = {"unfinished": sorted(self.unfinished), "done": sorted(self.done), "moved": sorted(self.moved.items())}
        return {**found, "completed_by": self.completed_by}

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> Claims:
        """Read the result of `described`, or of an earlier version of it, without `completed_by`."""
        moved = _moved(described["moved"])
        unfinished, done = (_positions(described[name]) for name in ("unfinished", "done"))
        return cls(unfinished, done, moved, int(described.get("completed_by", 1)))


def _positions(values: Iterable[Any]) -> list[int]:
    """Check positions or minibatches that were read from a file.

    Raises:
        ValueError: One is no whole number, or below 0.
    """
    found = list(values)
    odd = next((v for v in found if not isinstance(v, int) or isinstance(v, bool) or v < 0), None)
    if odd is not None:
        raise ValueError(f"{odd!r:.40} is no position of a minibatch")
    return found


def _moved(pairs: Iterable[Any]) -> dict[int, int]:
    return {p: n for p, n in (_positions(pair) for pair in pairs)}


def go_on(mark: int, known: Iterable[Claims]) -> Position:
    """Return the position from which a launch resumes, given the claims of the checkpoint's learners.

    Raises:
        ValueError: The claims go far beyond the mark.
    """
    known = list(known)
    times = Counter(chain.from_iterable(set(claims.done) for claims in known))
    needed = max((claims.completed_by for claims in known), default=1)
    done = {p for p, count in times.items() if count >= needed}
    unfinished = set(chain.from_iterable(claims.unfinished for claims in known))
    moved = dict(chain.from_iterable(claims.moved.items() for claims in known))
    again = sorted(p for p in unfinished - done if p < mark)
    early = {p for p in done if p >= mark}
    end = max([mark, *(p + 1 for p in (*early, *moved))])
    if end - mark > MOST_BEYOND:
        raise ValueError(f"its claims go up to position {end}, {end - mark} beyond the evaluation point")
    behind = mark - len(again) + len(early)
    order = [*again, *(p for p in range(mark, end) if p not in early)]
    numbers = [moved.get(p, p) for p in order]
    return Position(behind, {p: n for p, n in enumerate(numbers, start=behind) if p != n})


class Log:
    """Claims of one learner in this launch."""

    def __init__(self) -> None:
        self._doing = range(0)
        self._done = array("q")
        self._saved = [0, 0]  # numbers of steps at the last save, and at the last but one
        self._mark, self._since = -1, 0  # of the last save

    def begin(self, claim: range) -> None:
        """Record that the gradient of a claim has begun; the previous one has become a step."""
        self.finish()
        self._doing = claim

    def finish(self) -> None:
        """Record that the latest gradient has become a step."""
        self._done.extend(self._doing)
        self._doing = range(0)

    @property
    def doing(self) -> range:
        """Claim in progress; empty if there is none."""
        return self._doing

    def save(self, mark: int) -> list[int]:
        """Return the steps to save in a checkpoint part at an evaluation point: those beyond it, and the latest ones.

        The latest steps are those since the last save but one, which other learners may not know yet. Another save at
        the same point replaces the last one.
        """
        if mark != self._mark:
            self._mark, self._since = mark, self._saved[1]
            self._saved = [0, self._saved[0]]
        self._saved[0] = len(self._done)
        early = [p for p in self._done[: self._since] if p >= mark]
        return [*early, *self._done[self._since :]]
