"""Grammars G for decoding graphs: acceptors of word sequences, from rules, an n-gram model or a plain list of words.

Back-off arcs carry `#0` on the input side, as in Mohri, Pereira and Riley, "Speech recognition with weighted
finite-state transducers" (2008), section 3.1; n-gram models are converted by kaldilm.

The cost of a sentence of an acceptor is that of its cheapest path (-ln of its most likely derivation). Determinisation
is Mohri's, "Finite-state transducers in language and speech processing" (1997), section 3.3, in the tropical semiring.
It has no result for automata without the twins property, such as that of `(a | b)* x | (a | b | c)* y`; there, #0,
which the lexicon transducer passes, separates arcs of the same word that leave the same state.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import kaldifst
import kaldilm

from murmur.core.counted import counted, named
from murmur.execution.messages import library_lines_kept
from murmur.speech.language_model.arpa import write_arpa
from murmur.speech.language_model.ngram import END, START, NgramModel
from murmur.speech.lexicon.lexicon import BACKOFF, EPSILON, Lang, write_symbols

MOST_ARCS = 500_000
_DIGITS = 6  # of costs in comparisons
_MARKS = frozenset({EPSILON, BACKOFF, START, END})


class Arc(NamedTuple):
    """An arc from one state to another, with a word or (None) without."""

    source: int
    word: str | None
    cost: float
    target: int


@dataclass(frozen=True)
class Acceptor:
    """An automaton over words; state 0 is the start."""

    arcs: tuple[Arc, ...]  # costs are -ln probabilities, finite and not negative
    finals: Mapping[int, float]  # {state: cost of ending there}

    @cached_property
    def words(self) -> tuple[str, ...]:
        """All words on arcs, in byte order, without #0."""
        found = {arc.word for arc in self.arcs if arc.word is not None and arc.word != BACKOFF}
        return tuple(sorted(found, key=str.encode))

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


@dataclass(frozen=True, eq=False)
class Grammar:
    """A grammar over the word labels of one language."""

    fst: kaldifst.StdVectorFst  # transducer sorted by input label; do not change it
    removed: tuple[str, ...]  # words of the language model that are not in the lexicon; their n-grams are not in `fst`
    unreachable: tuple[str, ...]  # words of the lexicon that are not in the grammar
    digest: str  # digest of everything that the grammar is made of

    def __getstate__(self) -> dict[str, object]:
        """State for pickling: the library cannot pickle transducers, but can write them."""
        with tempfile.NamedTemporaryFile(prefix="murmur-grammar-") as file:
            if not self.fst.write(file.name):
                raise OSError(f"could not write {file.name}: is the disk full?")
            return {**self.__dict__, "fst": Path(file.name).read_bytes()}

    def __setstate__(self, state: dict[str, object]) -> None:
        content = state["fst"]
        assert isinstance(content, bytes)
        with tempfile.NamedTemporaryFile(prefix="murmur-grammar-") as file:
            Path(file.name).write_bytes(content)
            self.__dict__.update({**state, "fst": kaldifst.StdVectorFst.read(file.name)})


def sayable_words(lang: Lang) -> list[str]:
    """The words that decoding may output: those of the lexicon except marks."""
    return [word for word in lang.words if word not in _MARKS]


def searched_words(lang: Lang, grammar: Grammar) -> set[str]:
    """The words that a search with this grammar may output: a lexicon can have more."""
    return set(sayable_words(lang)).difference(grammar.unreachable)


def ngram_grammar(lang: Lang, model: NgramModel) -> Grammar:
    """G of a back-off model, restricted to the words of the lexicon, without the unknown word.

    Raises:
        ValueError: the model lacks `<s>` or `</s>`, or shares no word with the lexicon.
    """
    model.check_marks()
    sayable = set(sayable_words(lang))
    kept, removed = model.restricted(sayable)
    if not sayable.intersection(kept.words):
        raise ValueError(
            f"none of the {counted(len(model.words), 'word')} of the language model is in the lexicon"
            f" ({counted(len(sayable), 'word')}: {named(sorted(sayable))}): is one of them in lower case?"
        )
    with tempfile.TemporaryDirectory(prefix="murmur-grammar-") as folder:
        arpa, symbols = Path(folder, "kept.arpa"), Path(folder, "words.txt")
        # kaldilm ends the process on a bad table or a word outside it, so both files are written here.
        write_arpa(kept, arpa)
        write_symbols(lang.words, symbols)
        with library_lines_kept():
            text = kaldilm.arpa2fst(
                input_arpa=str(arpa),
                disambig_symbol=BACKOFF,
                read_symbol_table=str(symbols),
                max_order=kept.order,
                max_arpa_warnings=0,
            )
    return _grammar(lang, text, kept.words, removed)


def loop_grammar(lang: Lang) -> Grammar:
    """G of any number of words in any order, all equally likely.

    Raises:
        ValueError: the lexicon has no word.
    """
    return _any_word(lang, target=0)


def one_word_grammar(lang: Lang) -> Grammar:
    """G of exactly one word, for recordings of isolated words; all equally likely. Raises as `loop_grammar`."""
    return _any_word(lang, target=1)


def _any_word(lang: Lang, target: int) -> Grammar:
    """A choice of words from state 0 to the final state `target`, which may be 0 itself."""
    words = sorted(sayable_words(lang))
    if not words:
        raise ValueError("the lexicon has no word: a grammar needs one")
    cost = -math.log(1.0 / len(words))
    return acceptor_grammar(lang, Acceptor(tuple(Arc(0, word, cost, target) for word in words), {target: 0.0}))


def acceptor_grammar(lang: Lang, acceptor: Acceptor) -> Grammar:
    """G of a deterministic acceptor with words of the lexicon only.

    Raises:
        ValueError: it has words that the lexicon lacks, or arcs without a word.
    """
    missing = sorted(set(acceptor.words).difference(sayable_words(lang)))
    if missing or any(arc.word is None for arc in acceptor.arcs):
        raise ValueError(f"the lexicon lacks words of the grammar: {missing[:10]}")
    lines = []
    for source, word, cost, target in sorted(acceptor.arcs, key=lambda arc: arc.source):  # begins with the start state
        assert word is not None
        spoken = 0 if word == BACKOFF else lang.words[word]
        lines.append(f"{source}\t{target}\t{lang.words[word]}\t{spoken}\t{cost:.7g}\n")
    lines += [f"{state}\t{cost:.7g}\n" for state, cost in sorted(acceptor.finals.items())]
    return _grammar(lang, "".join(lines), acceptor.words)


def _grammar(lang: Lang, text: str, words: Collection[str], removed: Sequence[str] = ()) -> Grammar:
    fst = kaldifst.compile(text, acceptor=False)
    if fst is None or fst.num_states == 0:
        raise ValueError("the grammar is empty: the language model offers no sentence over the words of the lexicon")
    kaldifst.arcsort(fst, sort_type="ilabel")
    unreachable = sorted(set(sayable_words(lang)).difference(words))
    known = "\n".join(lang.word_of)
    digest = hashlib.sha256(f"{known}\n\n{text}".encode()).hexdigest()
    return Grammar(fst, tuple(removed), tuple(unreachable), digest)
