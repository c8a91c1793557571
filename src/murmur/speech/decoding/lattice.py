"""Lattices, the paths that survived a search: confidences of words, and the n best word sequences.

Path a has the probability exp(-cost(a)) / sum_b exp(-cost(b)), where cost is graph weight + acoustic scale * score,
which the decoder minimises. A word's confidence is the expected number of its occurrences at about the time of the best
path's word, at most 1 (Wessel et al., "Confidence measures for large vocabulary continuous speech recognition", 2001,
section III). It is relative to the surviving paths, hence too high if the truth is not in the lattice, and not
calibrated. In the graph of a back-off model, a listed n-gram is reached by its arc and by back-off, and both count.

The n best: a lattice holds many paths for one sequence of words. The least cost from each state to an end is computed
first. Paths are then extended in the order of their cost so far plus this least cost (A* search, Hart, Nilsson and
Raphael 1968), so that complete paths are found in the order of their costs. Of the paths with equal words to a state
only the first, the cheapest one, is extended, and paths of at most n different sequences: if n others reach a state at
less cost, these can continue in the same way, and n sequences are cheaper than the one in question. So the result is
exact.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import NamedTuple

import kaldifst
import numpy as np

IMPOSSIBLE = float("inf")


@dataclass(frozen=True, eq=False)
class Lattice:
    """The arcs of a lattice with their posterior probabilities.

    Attributes:
        words: (A,) output label of each arc.
        frames: (A,) frame of each arc, the number of frames read before it.
        posteriors: (A,) probability that a path goes through the arc.
        cost: - ln of the sum over paths of exp(-cost).
    """

    words: np.ndarray
    frames: np.ndarray
    posteriors: np.ndarray
    cost: float

    @staticmethod
    def of(lattice: kaldifst.Lattice) -> Lattice:
        """Forward and backward sums over all paths of an acyclic lattice.

        Raises:
            ValueError: the lattice has a cycle, or no path.
        """
        table, finals = arcs_of(lattice)
        order = topological(table, lattice.start)
        ahead, frame = _forward(table, order, lattice.start)
        total = _add_all([ahead[s] + final for s, final in finals.items() if s in ahead])
        if total == IMPOSSIBLE:
            raise ValueError("the lattice has no path from its start to a final state")
        behind = _behind(table, order, finals, _add_all)
        arcs = [arc for state in order for arc in table.get(state, [])]
        costs = [ahead[arc.source] + arc.cost + behind[arc.target] for arc in arcs]
        return Lattice(
            np.array([arc.olabel for arc in arcs], dtype=np.int64),
            np.array([frame[arc.source] for arc in arcs], dtype=np.int64),
            np.array([math.exp(min(total - cost, 0.0)) for cost in costs]),
            total,
        )

    def confidences(self, labels: Sequence[int], emitted: Sequence[int]) -> list[float]:
        """Confidence of each word of the best path, from its word labels and the frames at which it emits them.

        A word's time is from halfway to the frame of words before to halfway to the frame of words after.
        """
        found = []
        for label, (first, end) in zip(labels, _windows(emitted), strict=True):
            near = (self.frames >= first) & (self.frames < end) & (self.words == label)
            found.append(min(float(self.posteriors[near].sum()), 1.0))
        return found


def _windows(emitted: Sequence[int]) -> list[tuple[float, float]]:
    """Window of each of some non-decreasing frames: from halfway to the next lower to halfway to the next higher."""
    different = sorted(set(emitted))
    edges = [-IMPOSSIBLE, *((a + b) / 2 for a, b in pairwise(different)), IMPOSSIBLE]
    return [(edges[place], edges[place + 1]) for place in map(different.index, emitted)]


class Arc(NamedTuple):
    """An arc of a lattice; `ilabel` and `olabel` are 0 for epsilon."""

    source: int
    target: int
    ilabel: int
    olabel: int
    cost: float


def arcs_of(lattice: kaldifst.Lattice) -> tuple[dict[int, list[Arc]], dict[int, float]]:
    """Arcs by source, and costs of final states; lattices are readable in text form only."""
    table: dict[int, list[Arc]] = {}
    finals: dict[int, float] = {}
    for line in lattice.to_str(show_weight_one=True).splitlines():
        fields = line.split()
        if len(fields) >= 4:
            source, target, ilabel, olabel = map(int, fields[:4])
            cost = _cost(fields[4]) if len(fields) > 4 else 0.0
            table.setdefault(source, []).append(Arc(source, target, ilabel, olabel, cost))
        elif fields:
            finals[int(fields[0])] = _cost(fields[1]) if len(fields) > 1 else 0.0
    return table, finals


def _cost(text: str) -> float:
    return sum(float(part) for part in text.split(","))


def topological(table: dict[int, list[Arc]], start: int) -> list[int]:
    """The states that the start reaches, each before its successors."""
    entering: dict[int, int] = {start: 0}
    seen, waiting = {start}, [start]
    while waiting:
        for arc in table.get(waiting.pop(), []):
            entering[arc.target] = entering.get(arc.target, 0) + 1
            if arc.target not in seen:
                seen.add(arc.target)
                waiting.append(arc.target)
    order, ready = [], [start] if not entering[start] else []
    while ready:
        state = ready.pop()
        order.append(state)
        for arc in table.get(state, []):
            entering[arc.target] -= 1
            if not entering[arc.target]:
                ready.append(arc.target)
    if len(order) < len(seen):
        raise ValueError("the lattice has a cycle: its paths cannot be summed")
    return order


def _forward(table: dict[int, list[Arc]], order: list[int], start: int) -> tuple[dict[int, float], dict[int, int]]:
    """-ln of the sum over all paths to each state, and its frame."""
    ways: dict[int, list[float]] = {start: [0.0]}
    ahead: dict[int, float] = {}
    frame = {start: 0}
    for state in order:
        ahead[state] = _add_all(ways.pop(state))
        for arc in table.get(state, []):
            ways.setdefault(arc.target, []).append(ahead[state] + arc.cost)
            frame[arc.target] = frame[state] + (arc.ilabel != 0)
    return ahead, frame


def _behind(
    table: dict[int, list[Arc]], order: list[int], finals: dict[int, float], total: Callable[[list[float]], float]
) -> dict[int, float]:
    """Cost from each state to the end, final cost included: `_add_all` over all paths, or the `min`."""
    behind: dict[int, float] = {}
    for state in reversed(order):
        ways = [behind[arc.target] + arc.cost for arc in table.get(state, [])]
        behind[state] = total([*ways, finals.get(state, IMPOSSIBLE)])
    return behind


def _add_all(costs: list[float]) -> float:
    """- ln sum exp(-cost)."""
    least = min(costs, default=IMPOSSIBLE)
    if least == IMPOSSIBLE:
        return IMPOSSIBLE
    return least - math.log(math.fsum(math.exp(least - cost) for cost in costs))


_NO_WORDS = 0
_END = -1  # the state behind all final states


@dataclass(frozen=True)
class WordPath:
    """The cheapest path of a word sequence.

    Attributes:
        labels: input labels of the path, without epsilons.
        words: output labels, without epsilons.
        cost: sum of its arcs' costs and of the cost of its final state.
    """

    labels: tuple[int, ...]
    words: tuple[int, ...]
    cost: float


class _Token(NamedTuple):
    """A path to a state: its cost, the number of its word sequence, and the path before its last arc."""

    cost: float
    state: int
    said: int
    before: _Token | None = None
    arc: Arc | None = None


def best_word_paths(lattice: kaldifst.Lattice, n: int) -> list[WordPath]:
    """Up to n paths with different words, the cheapest first.

    Raises:
        ValueError: n < 1, or the lattice has a cycle.
    """
    if n < 1:
        raise ValueError(f"an n-best list of {n} hypotheses: ask for at least 1")
    table, finals = arcs_of(lattice)
    least = _behind(table, topological(table, lattice.start), finals, min)
    numbers: dict[tuple[int, int], int] = {}  # (sequence, next word) to sequence
    extended: set[tuple[int, int]] = set()
    sequences: Counter[int] = Counter()  # of the paths to a state that were extended
    order, found = count(), list[_Token]()
    first = (0.0, next(order), _Token(0.0, lattice.start, _NO_WORDS))
    waiting = [first] if least[lattice.start] < IMPOSSIBLE else []  # the start of an empty lattice is -1, like _END
    while waiting and len(found) < n:
        _, _, token = heapq.heappop(waiting)
        cost, state, said, *_ = token
        if (state, said) in extended or sequences[state] == n:
            continue
        extended.add((state, said))
        sequences[state] += 1
        if state == _END:
            found.append(token)
            continue
        if finals.get(state, IMPOSSIBLE) < IMPOSSIBLE:
            last = _Token(cost + finals[state], _END, said, token)
            heapq.heappush(waiting, (last.cost, next(order), last))
        for arc in table.get(state, []):
            ahead, word = cost + arc.cost, arc.olabel
            then = numbers.setdefault((said, word), len(numbers) + 1) if word else said
            if ahead + least[arc.target] < IMPOSSIBLE and (arc.target, then) not in extended:
                there = _Token(ahead, arc.target, then, token, arc)
                heapq.heappush(waiting, (ahead + least[arc.target], next(order), there))
    return [_path(token) for token in found]


def _path(last: _Token) -> WordPath:
    labels, words, token = [], [], last
    while token.before is not None:
        if token.arc is not None:  # the step to the end has none
            labels.append(token.arc.ilabel)
            words.append(token.arc.olabel)
        token = token.before
    return WordPath(tuple(x for x in reversed(labels) if x), tuple(x for x in reversed(words) if x), last.cost)
