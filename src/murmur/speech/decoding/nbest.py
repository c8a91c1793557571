"""The n best word sequences of a lattice.

A lattice holds many paths for one sequence of words. Each state keeps the n cheapest different word sequences that
reach it, each with its cheapest path, in topological order. This is exact: if a state were reached by n other sequences
at less cost, these could continue in the same way, and n sequences would be cheaper than the one in question.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import kaldifst

from murmur.speech.decoding.lattice import IMPOSSIBLE, Arc, arcs_of, topological

_NO_WORDS = 0


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
    numbers: dict[tuple[int, int], int] = {}  # (sequence, next word) to sequence
    reached: dict[int, dict[int, _Token]] = {lattice.start: {_NO_WORDS: _Token(0.0, _NO_WORDS)}}
    ended: dict[int, _Token] = {}
    for state in topological(table, lattice.start):
        tokens = _cheapest(reached.pop(state, {}), n)
        for token in tokens if state in finals else ():
            ended[token.said] = _cheaper(token._replace(cost=token.cost + finals[state]), ended.get(token.said))
        for arc in table.get(state, []):
            _, target, _, word, number = arc
            weight, there = weights[number], reached.setdefault(target, {})
            for token in tokens:
                cost, said = token.cost + weight, token.said
                if word:
                    said = numbers.setdefault((said, word), len(numbers) + 1)
                other = there.get(said)
                if other is None or cost < other.cost:
                    there[said] = _Token(cost, said, token, arc)
    return [_path(token) for token in sorted(_cheapest(ended, n), key=_cost)]


_cost = attrgetter("cost")


def _cheapest(tokens: dict[int, _Token], n: int) -> list[_Token]:
    """The n cheapest possible paths, in any order."""
    possible = [token for token in tokens.values() if token.cost < IMPOSSIBLE]
    return possible if len(possible) <= n else heapq.nsmallest(n, possible, key=_cost)


def _cheaper(token: _Token, other: _Token | None) -> _Token:
    return token if other is None or token.cost < other.cost else other


def _path(last: _Token) -> WordPath:
    labels, words, token = [], [], last
    while token.before is not None:
        assert token.arc is not None
        _, _, label, word, _ = token.arc
        labels.append(label)
        words.append(word)
        token = token.before
    return WordPath(tuple(x for x in reversed(labels) if x), tuple(x for x in reversed(words) if x), last.cost)
