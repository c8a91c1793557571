"""Position of a run in its minibatches, which a resumed launch goes on from; the pieces of a minibatch.

An evaluation point is a number of assigned minibatches. Without lock-step each learner saves at its first claim beyond
the point, at a moment of its own. A minibatch before the point may therefore be in no weights yet, and one beyond it in
some weights. The position is combined from the claims that each learner knew when it saved its part:

    again    before the point, unfinished when a learner saved, and not in the weights that make up the model
    early    beyond the point, and in those weights

If several servers keep a part of these weights each, a minibatch is in them if it is in all parts. One that is in some
is repeated, and those that have it leave it out.

A launch that resumes there first repeats the minibatches of `again`, then computes all beyond the point except those of
`early`. Positions are counted on: `Position.done` of them are complete, and `moved` lists the next minibatches.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from murmur.core.plain_files import making_sense, read_plain
from murmur.core.whole_files import write_whole
from murmur.engine.checkpoints.checkpoint import Checkpoints

START = "began.json"
MOST_PIECES = 1_000_000
MOST_BEYOND = 10_000_000  # positions that can have begun before the slowest learner saved


@dataclass(frozen=True)
class Position:
    """Position from which a launch resumes: minibatches done, and those `moved` to the next positions."""

    done: int = 0
    moved: Mapping[int, int] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        return {"done": self.done, "moved": sorted(self.moved.items())}

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> Position:
        (done,) = _positions([described["done"]])
        return cls(done, _moved(described["moved"]))


@dataclass(frozen=True)
class Claims:
    """Claims known to one learner when it saved; all are positions.

    Attributes:
        unfinished: Positions before the point that were claimed and, as far as it knew, not complete.
        done: Positions that it completed itself, beyond the point or recently, if its weights are part of the model;
            all of them where each learner has a share of its own, whose end it may reach long after the others.
        moved: `Position.moved` of its launch.
        completed_by: Number of learners that each complete a minibatch: 1, or the number of servers with a part each.
    """

    unfinished: Sequence[int] = ()
    done: Sequence[int] = ()
    moved: Mapping[int, int] = field(default_factory=dict)
    completed_by: int = 1

    def described(self) -> dict[str, Any]:
        found = {"unfinished": sorted(self.unfinished), "done": sorted(self.done), "moved": sorted(self.moved.items())}
        return {**found, "completed_by": self.completed_by}

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> Claims:
        moved = _moved(described["moved"])
        unfinished, done = (_positions(described[name]) for name in ("unfinished", "done"))
        return cls(unfinished, done, moved, int(described["completed_by"]))


def _positions(values: Iterable[Any]) -> list[int]:
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
        self._done.extend(self._doing)
        self._doing = range(0)

    @property
    def doing(self) -> range:
        return self._doing

    @property
    def done(self) -> list[int]:
        return list(self._done)

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


def write_start(out: Path, cut: int, outputs: str, position: Position) -> None:
    """Write what a launch begins with, for learners that join late: pieces of minibatches, outputs, position."""
    start = {"cut": cut, "outputs": outputs, "position": position.described()}
    write_whole(out / "checkpoints" / START, json.dumps(start).encode())


def read_start(out: Path) -> tuple[str, Position] | None:
    path = out / "checkpoints" / START
    if not path.exists():
        return None
    with making_sense(path, "start the run again with --resume, which writes it anew"):
        start = json.loads(read_plain(path))
        return str(start["outputs"]), Position.read(start["position"])


def cut_of(out: Path) -> int | None:
    """Return the number of pieces of each minibatch of the run in a folder; None if it has not begun.

    A run keeps the number with which it began, as its minibatches are numbered by pieces. The newest part of a
    checkpoint that can be read names it, else the start of the run.
    """
    named = (facts.get("cut") for facts in Checkpoints(out / "checkpoints").facts())
    kept = next((cut for cut in named if _is_cut(cut)), None)
    path = out / "checkpoints" / START
    if kept is not None or not path.exists():
        return kept
    with making_sense(path, "move it away, and the run starts from the beginning"):
        cut = json.loads(read_plain(path))["cut"]
        if not _is_cut(cut):
            raise ValueError(f"minibatches are cut in at least 1 piece, not {cut!r:.40}, and at most {MOST_PIECES}")
        return int(cut)


def _is_cut(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_PIECES
