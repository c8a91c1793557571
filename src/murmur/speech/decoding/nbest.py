"""The n best word sequences of a lattice.

A lattice holds many paths for one sequence of words. The least cost from each state to an end is computed first. Paths
are then extended in the order of their cost so far plus this least cost (A* search, Hart, Nilsson and Raphael 1968), so
that complete paths are found in the order of their costs. Of the paths with equal words to a state only the first, the
cheapest one, is extended, and paths of at most n different sequences: if n others reach a state at less cost, these can
continue in the same way, and n sequences are cheaper than the one in question. So the result is exact.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import kaldifst

from murmur.speech.decoding.lattice import IMPOSSIBLE, Arc, arcs_of, topological

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
    table, weights, finals = arcs_of(lattice)
    least = _least(table, weights, finals, lattice.start)
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
            _, target, _, word, number = arc
            ahead = cost + weights[number]
            then = numbers.setdefault((said, word), len(numbers) + 1) if word else said
            if ahead + least[target] < IMPOSSIBLE and (target, then) not in extended:
                there = _Token(ahead, target, then, token, arc)
                heapq.heappush(waiting, (ahead + least[target], next(order), there))
    return [_path(token) for token in found]


def _least(table: dict[int, list[Arc]], weights: list[float], finals: dict[int, float], start: int) -> dict[int, float]:
    """The least cost from each state to the end, final cost included."""
    least: dict[int, float] = {}
    for state in reversed(topological(table, start)):
        costs = [weights[number] + least[target] for _, target, _, _, number in table.get(state, [])]
        least[state] = min([*costs, finals.get(state, IMPOSSIBLE)])
    return least


def _path(last: _Token) -> WordPath:
    labels, words, token = [], [], last
    while token.before is not None:
        if token.arc is not None:  # the step to the end has none
            _, _, label, word, _ = token.arc
            labels.append(label)
            words.append(word)
        token = token.before
    return WordPath(tuple(x for x in reversed(labels) if x), tuple(x for x in reversed(words) if x), last.cost)
