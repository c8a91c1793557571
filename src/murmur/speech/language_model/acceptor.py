"""Weighted finite-state acceptors of word sequences: built from the rules of a grammar, then determinised.

The cost of a sentence is that of its cheapest path (-ln of its most likely derivation). Determinisation is Mohri's,
"Finite-state transducers in language and speech processing" (1997), section 3.3, in the tropical semiring. It has no
result for automata without the twins property, such as that of `(a | b)* x | (a | b | c)* y`; there, the back-off
symbol #0, which the lexicon transducer passes, separates arcs of the same word that leave the same state.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from murmur.speech.language_model.jsgf import Choice, Expansion, GrammarRule, Reference, Repeat, Sequence, WordChain
from murmur.speech.lexicon.lexicon import BACKOFF

MOST_ARCS = 500_000
_DIGITS = 6  # of costs in comparisons
_HALF = math.log(2.0)


class Arc(NamedTuple):
    """An arc from one state to another, with a word or (None) without."""

    source: int
    word: str | None
    cost: float
    target: int


@dataclass(frozen=True)
class Acceptor:
    """An automaton over words; state 0 is the start.

    Attributes:
        arcs: costs are -ln probabilities, finite and not negative.
        finals: {state: cost of ending there}.
    """

    arcs: tuple[Arc, ...]
    finals: Mapping[int, float]

    @cached_property
    def words(self) -> tuple[str, ...]:
        """All words on arcs, in byte order, without #0."""
        found = {arc.word for arc in self.arcs if arc.word is not None and arc.word != BACKOFF}
        return tuple(sorted(found, key=str.encode))

    @property
    def num_states(self) -> int:
        """One more than the largest state that an arc names or that is final."""
        named = [state for arc in self.arcs for state in (arc.source, arc.target)]
        return 1 + max(0, *named, *self.finals)

    def trimmed(self) -> Acceptor:
        """The acceptor without states that no sentence passes."""
        forwards: dict[int, list[int]] = {}
        backwards: dict[int, list[int]] = {}
        for arc in self.arcs:
            forwards.setdefault(arc.source, []).append(arc.target)
            backwards.setdefault(arc.target, []).append(arc.source)
        alive = _reached({0}, forwards) & _reached(self.finals, backwards)
        arcs = tuple(arc for arc in self.arcs if arc.source in alive and arc.target in alive)
        return Acceptor(arcs, {state: cost for state, cost in self.finals.items() if state in alive})


def _reached(first: Mapping[int, float] | set[int], ways: Mapping[int, list[int]]) -> set[int]:
    found, waiting = set(first), list(first)
    while waiting:
        for state in ways.get(waiting.pop(), ()):
            if state not in found:
                found.add(state)
                waiting.append(state)
    return found


def acceptor_of_rules(rules: Mapping[str, GrammarRule], name: str) -> Acceptor:
    """All sentences of the public rules, which are equally likely; `name` is for messages.

    Raises:
        ValueError: the rules expand to too many arcs, or allow no sentence with a word.
    """
    public = [rule.expansion for rule in rules.values() if rule.public]
    whole = public[0] if len(public) == 1 else Choice(tuple((math.log(len(public)), x) for x in public))
    written = _WrittenOut(rules)
    waiting: list[_Between] = [(whole, 0, 1)]
    for steps in itertools.count(1):
        if not waiting:
            break
        if len(written.arcs) + steps > 2 * MOST_ARCS:
            raise ValueError(
                f"{name}: the rules take more than {MOST_ARCS} arcs when they are written out: a language model "
                "(--lm) fits so many sentences better"
            )
        waiting += written.add(*waiting.pop())
    found = Acceptor(tuple(written.arcs), {1: 0.0}).trimmed()
    if not found.words:
        raise ValueError(f"{name}: the grammar allows no sentence with a word")
    return found


_Between = tuple[Expansion, int, int]


class _WrittenOut:
    """Arcs of expansions; each reference gets a copy of its rule. The states 0 and 1 exist from the start."""

    def __init__(self, rules: Mapping[str, GrammarRule]) -> None:
        self._rules = rules
        self.arcs: list[Arc] = []
        self._states = 2

    def add(self, part: Expansion, source: int, target: int) -> list[_Between]:
        """Put an expansion between two states; return its parts that are still to be added."""
        match part:
            case WordChain(words):
                self._spell(words, source, 0.0, target)
                return []
            case Sequence(parts):
                inner = [source, *self._new(len(parts) - 1), target]
                return [(x, inner[n], inner[n + 1]) for n, x in enumerate(parts)]
            case Choice(options):
                return [x for cost, option in options for x in self._option(cost, option, source, target)]
            case Repeat(body, least):
                begin, end = self._new(2)
                ways = [(end, _HALF, begin), (end, _HALF, target)]
                ways += [(source, 0.0, begin)] if least else [(source, _HALF, begin), (source, _HALF, target)]
                self.arcs += [Arc(here, None, cost, there) for here, cost, there in ways]
                return [(body, begin, end)]
            case Reference(name):
                return [(self._rules[name].expansion, source, target)]

    def _option(self, cost: float, option: Expansion, source: int, target: int) -> list[_Between]:
        if isinstance(option, WordChain):  # needs no state, of which long lists would need thousands
            self._spell(option.words, source, cost, target)
            return []
        (begin,) = self._new(1)
        self.arcs.append(Arc(source, None, cost, begin))
        return [(option, begin, target)]

    def _spell(self, words: Iterable[str], source: int, cost: float, target: int) -> None:
        chain = tuple(words) or (None,)
        inner = [source, *self._new(len(chain) - 1), target]
        costs = [cost] + [0.0] * (len(chain) - 1)
        self.arcs += map(Arc, inner, chain, costs, inner[1:])

    def _new(self, count: int) -> range:
        self._states += count
        return range(self._states - count, self._states)


def deterministic(acceptor: Acceptor, name: str = "the grammar") -> Acceptor:
    """The same sentences at the same costs, without arcs that have no word, and with one arc per state and word.

    If this is impossible or would be much larger, #0 separates the arcs (see the module). States are numbered in the
    order in which they are found, so equal grammars have equal results.

    Raises:
        ValueError: there are more arcs than a graph can hold.
    """
    whole = _Closed(acceptor)
    try:
        return _determinised(whole, 20 * len(acceptor.arcs) + 10_000)
    except _TooLargeError:
        pass
    try:
        return _marked(whole)
    except _TooLargeError as error:
        raise ValueError(
            f"{name} takes more than {MOST_ARCS} arcs without its empty transitions: give long lists of optional "
            "parts fewer members, or use a language model (--lm)"
        ) from error


class _TooLargeError(Exception):
    """The limit of the work was exceeded."""


class _Closed:
    """The arcs with words of each state, and the states reached by arcs without words."""

    def __init__(self, acceptor: Acceptor) -> None:
        self.finals = acceptor.finals
        self.spoken: dict[int, list[Arc]] = {}
        self._silent: dict[int, list[Arc]] = {}
        for arc in acceptor.arcs:
            (self._silent if arc.word is None else self.spoken).setdefault(arc.source, []).append(arc)
        self._known: dict[int, list[tuple[int, float]]] = {}
        self._size = 0

    def reach(self, state: int) -> list[tuple[int, float]]:
        """States with words on arcs, or final ones, at the least cost of reaching them from `state` without words."""
        if state not in self._known:
            found = sorted(self._search(state))
            self._size += len(found)
            if self._size > 4 * MOST_ARCS:
                raise _TooLargeError
            self._known[state] = found
        return self._known[state]

    def _search(self, state: int) -> Iterator[tuple[int, float]]:
        done: set[int] = set()
        waiting = [(0.0, state)]
        while waiting:
            cost, here = heapq.heappop(waiting)
            if here in done:
                continue
            done.add(here)
            if here in self.spoken or here in self.finals:
                yield here, cost
            for arc in self._silent.get(here, ()):
                if arc.target not in done:
                    heapq.heappush(waiting, (cost + arc.cost, arc.target))


def _determinised(closed: _Closed, most_work: int) -> Acceptor:
    """Subsets of states with the remaining cost of each."""
    first = dict(closed.reach(0))
    number = {_key(first): 0}
    subsets, finals = [first], {}
    arcs: list[Arc] = []
    work = 0
    for here, subset in enumerate(subsets):  # grows
        endings = [cost + closed.finals[state] for state, cost in subset.items() if state in closed.finals]
        if endings:
            finals[here] = min(endings)
        after: dict[str, dict[int, float]] = {}
        for state, owed in subset.items():
            for arc in closed.spoken.get(state, ()):
                assert arc.word is not None
                targets, ways = after.setdefault(arc.word, {}), closed.reach(arc.target)
                for target, cost in ways:
                    targets[target] = min(targets.get(target, math.inf), owed + arc.cost + cost)
                work += 1 + len(ways)
        if work > most_work or len(arcs) > MOST_ARCS:
            raise _TooLargeError
        for word, targets in after.items():
            least = min(targets.values())
            rest = {target: cost - least for target, cost in sorted(targets.items())}
            key = _key(rest)
            if key not in number:
                number[key] = len(subsets)
                subsets.append(rest)
            arcs.append(Arc(here, word, least, number[key]))
    return Acceptor(tuple(arcs), finals)


def _key(subset: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    return tuple((state, round(cost, _DIGITS)) for state, cost in subset.items())


def _marked(closed: _Closed) -> Acceptor:
    """Arcs without words removed; the second arc of a state and word goes after one #0, the third after two, ..."""
    number = {0: 0}
    queue = [0]
    found: list[tuple[int, dict[str, list[tuple[float, int]]]]] = []
    finals: dict[int, float] = {}
    size = 0
    for here in queue:  # grows
        after: dict[str, dict[int, float]] = {}
        for state, silence in closed.reach(here):
            if state in closed.finals:
                finals[number[here]] = min(finals.get(number[here], math.inf), silence + closed.finals[state])
            for arc in closed.spoken.get(state, ()):
                assert arc.word is not None
                if arc.target not in number:
                    number[arc.target] = len(number)
                    queue.append(arc.target)
                targets = after.setdefault(arc.word, {})
                target = number[arc.target]
                targets[target] = min(targets.get(target, math.inf), silence + arc.cost)
        size += sum(map(len, after.values()))
        if size > MOST_ARCS:
            raise _TooLargeError
        found.append((number[here], {word: [(c, t) for t, c in ways.items()] for word, ways in after.items()}))
    arcs, states = [], len(number)
    for state, ways in found:
        source = state
        for level in range(max(map(len, ways.values()), default=0)):
            if level:
                arcs.append(Arc(source, BACKOFF, 0.0, states))
                source, states = states, states + 1
            arcs += [Arc(source, word, *t[level]) for word, t in ways.items() if len(t) > level]
    return Acceptor(tuple(arcs), finals)
