"""Word confidence: posterior probabilities in a lattice.

A lattice holds the paths that survived the search. Path a has the probability exp(-cost(a)) / sum_b exp(-cost(b)),
where cost is graph weight + acoustic scale * score, which the decoder minimises. A word's confidence is the expected
number of its occurrences at about the time of the best path's word, at most 1 (Wessel et al., "Confidence measures
for large vocabulary continuous speech recognition", 2001, section III). It is relative to the surviving paths, hence
too high if the truth is not in the lattice, and not calibrated. In the graph of a back-off model, a listed n-gram is
reached by its arc and by back-off, and both paths count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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
        table, weights, finals = arcs_of(lattice)
        order = topological(table, lattice.start)
        ahead, frame = _forward(table, weights, order, lattice.start)
        total = _add_all([ahead[s] + final for s, final in finals.items() if s in ahead])
        if total == IMPOSSIBLE:
            raise ValueError("the lattice has no path from its start to a final state")
        behind = _backward(table, weights, order, finals)
        numbers = [n for state in order for n in table.get(state, [])]
        posteriors = []
        for source, target, _, _, number in numbers:
            cost = ahead.get(source, IMPOSSIBLE) + weights[number] + behind.get(target, IMPOSSIBLE)
            posteriors.append(math.exp(min(total - cost, 0.0)))
        return Lattice(
            np.array([olabel for _, _, _, olabel, _ in numbers], dtype=np.int64),
            np.array([frame.get(source, 0) for source, *_ in numbers], dtype=np.int64),
            np.array(posteriors),
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


Arc = tuple[int, int, int, int, int]  # source, target, input label, output label, number


def arcs_of(lattice: kaldifst.Lattice) -> tuple[dict[int, list[Arc]], list[float], dict[int, float]]:
    """Arcs by source, their costs by number, costs of final states; lattices are readable in text form only."""
    table: dict[int, list[Arc]] = {}
    weights: list[float] = []
    finals: dict[int, float] = {}
    for line in lattice.to_str(show_weight_one=True).splitlines():
        fields = line.split()
        if len(fields) >= 4:
            source, target, ilabel, olabel = (int(field) for field in fields[:4])
            table.setdefault(source, []).append((source, target, ilabel, olabel, len(weights)))
            weights.append(_cost(fields[4]) if len(fields) > 4 else 0.0)
        elif fields:
            finals[int(fields[0])] = _cost(fields[1]) if len(fields) > 1 else 0.0
    return table, weights, finals


def _cost(text: str) -> float:
    return sum(float(part) for part in text.split(","))


def topological(table: dict[int, list[Arc]], start: int) -> list[int]:
    """The states that the start reaches, each before its successors."""
    entering: dict[int, int] = {start: 0}
    seen, waiting = {start}, [start]
    while waiting:
        for _, target, *_ in table.get(waiting.pop(), []):
            entering[target] = entering.get(target, 0) + 1
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    order, ready = [], [start] if not entering[start] else []
    while ready:
        state = ready.pop()
        order.append(state)
        for _, target, *_ in table.get(state, []):
            entering[target] -= 1
            if not entering[target]:
                ready.append(target)
    if len(order) < len(seen):
        raise ValueError("the lattice has a cycle: its paths cannot be summed")
    return order


def _forward(
    table: dict[int, list[Arc]], weights: list[float], order: list[int], start: int
) -> tuple[dict[int, float], dict[int, int]]:
    """-ln of the sum over all paths to each state, and its frame."""
    ways: dict[int, list[float]] = {start: [0.0]}
    ahead: dict[int, float] = {}
    frame = {start: 0}
    for state in order:
        ahead[state] = _add_all(ways.pop(state))
        for _, target, ilabel, _, number in table.get(state, []):
            ways.setdefault(target, []).append(ahead[state] + weights[number])
            frame[target] = frame[state] + (ilabel != 0)
    return ahead, frame


def _backward(
    table: dict[int, list[Arc]], weights: list[float], order: list[int], finals: dict[int, float]
) -> dict[int, float]:
    behind: dict[int, float] = {}
    for state in reversed(order):
        ways = [behind[target] + weights[number] for _, target, _, _, number in table.get(state, [])]
        behind[state] = _add_all([*ways, finals.get(state, IMPOSSIBLE)])
    return behind


def _add_all(costs: list[float]) -> float:
    """- ln sum exp(-cost)."""
    least = min(costs, default=IMPOSSIBLE)
    if least == IMPOSSIBLE:
        return IMPOSSIBLE
    return least - math.log(math.fsum(math.exp(least - cost) for cost in costs))
