"""Position of a run without lock-step, combined from what its learners knew when each saved its part.

An evaluation point is a number of assigned minibatches. A learner saves at its first claim beyond it, the others
at other moments; a minibatch before the point may be in no weights yet, and one beyond it in some.

    again    before the point, unfinished when a learner saved, and not in the weights of those that hold the model
    early    beyond the point, and in those weights

A launch that goes on from there does first what is done again, then everything beyond the point but what came early.
Its positions are counted on: `Position.done` of them are behind, and `moved` says which minibatches the next ones are.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any


@dataclass(frozen=True)
class Position:
    """Position from which a launch resumes.

    Attributes:
        done: Number of minibatches already done.
        moved: numbers of the minibatches at positions from `done` on, where they are not those of the positions.
    """

    done: int = 0
    moved: Mapping[int, int] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """In JSON's terms."""
        return {"done": self.done, "moved": sorted(self.moved.items())}

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> Position:
        """Read the result of `described`."""
        return cls(described["done"], {int(p): int(n) for p, n in described["moved"]})


@dataclass(frozen=True)
class Claims:
    """Claims known to one learner when it saved; all are positions.

    Attributes:
        unfinished: handed out, and not done as far as it knew; before the point.
        done: by itself, beyond the point or lately, where its weights are part of the model.
        moved: as in `Position`, of the launch that it was part of.
    """

    unfinished: Sequence[int] = ()
    done: Sequence[int] = ()
    moved: Mapping[int, int] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """In JSON's terms."""
        return {"unfinished": sorted(self.unfinished), "done": sorted(self.done), "moved": sorted(self.moved.items())}

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> Claims:
        """Read the result of `described`."""
        return cls(described["unfinished"], described["done"], {int(p): int(n) for p, n in described["moved"]})


def go_on(mark: int, known: Iterable[Claims]) -> Position:
    """Position from which a launch resumes, given what the checkpoint's learners knew."""
    known = list(known)
    done = set(chain.from_iterable(claims.done for claims in known))
    unfinished = set(chain.from_iterable(claims.unfinished for claims in known))
    moved = dict(chain.from_iterable(claims.moved.items() for claims in known))
    again = sorted(p for p in unfinished - done if p < mark)
    early = {p for p in done if p >= mark}
    end = max([mark, *(p + 1 for p in (*early, *moved))])
    behind = mark - len(again) + len(early)
    order = [*again, *(p for p in range(mark, end) if p not in early)]
    numbers = [moved.get(p, p) for p in order]
    return Position(behind, {p: n for p, n in enumerate(numbers, start=behind) if p != n})


class Log:
    """The claims of one learner in this launch."""

    def __init__(self) -> None:
        self._doing = range(0)
        self._done = array("q")
        self._saved = [0, 0]  # how many there were when it saved for the last time, and for the last time but one

    def begin(self, claim: range) -> None:
        """The gradient of a claim has begun; the one before has become a step."""
        self.finish()
        self._doing = claim

    def finish(self) -> None:
        """The latest gradient has become a step."""
        self._done.extend(self._doing)
        self._doing = range(0)

    @property
    def doing(self) -> range:
        """The claim that is under way; empty if there is none."""
        return self._doing

    def save(self, mark: int) -> list[int]:
        """Steps saved in a checkpoint part at an evaluation point: those beyond it, and the latest ones.

        The latest are those since the last time but one: others may not have heard of them.
        """
        early = [p for p in self._done[: self._saved[1]] if p >= mark]
        latest = self._done[self._saved[1] :]
        self._saved = [len(self._done), self._saved[0]]
        return [*early, *latest]
