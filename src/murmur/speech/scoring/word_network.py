"""Reference transcripts as networks of words: alternatives and optional words, and their cheapest alignment.

    { going to / gonna }    alternatives; @ stands for no word
    (uh)                    optional: its deletion is no error, and it counts as correct

The alignment minimises sclite's cost: 4 a substitution, 3 an insertion or deletion, 2 the deletion of an optional word.
A fragment `wor-` matches every word that begins with `wor` (`-ord`: that ends with `ord`), on either side. Words match
whatever their case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

SUBSTITUTION, GAP, OPTIONAL_GAP = 4.0, 3.0, 2.0
EMPTY = "@"
MOST_NESTED = 100
SHOWN = 60  # characters of a transcript in a message


class TranscriptError(ValueError):
    """A transcript whose braces or parentheses do not match."""


class Arc(NamedTuple):
    """Arc of a network: from one state to a later one with a word; `word` None stands for no word."""

    start: int
    end: int
    word: str | None
    optional: bool


@dataclass(frozen=True)
class WordNetwork:
    """Network of words; states are numbered so that every arc leads to a larger number, 0 is the first.

    Attributes:
        arcs: Arcs in order of their end.
        last: Last state.
    """

    arcs: tuple[Arc, ...]
    last: int

    @classmethod
    def of(cls, transcript: str) -> WordNetwork:
        """Read a transcript with alternatives and optional words; a TranscriptError if braces do not match."""
        return _Reader(transcript).network()


class _Reader:
    """Reader of one transcript, by recursive descent over its tokens."""

    def __init__(self, transcript: str) -> None:
        self._text = transcript
        self._tokens = transcript.replace("{", " { ").replace("}", " } ").split()
        self._at = 0
        self._states = 1
        self._depth = 0
        self._arcs: list[Arc] = []

    def network(self) -> WordNetwork:
        last = self._sequence(0, inside=False)
        if self._at < len(self._tokens):
            raise TranscriptError(f"a brace is closed that was not opened: {self._text[:SHOWN]!r}")
        return WordNetwork(tuple(sorted(self._arcs, key=lambda arc: arc.end)), last)

    def _sequence(self, state: int, inside: bool) -> int:
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token == "}" or (inside and token == "/"):
                return state
            self._at += 1
            state = self._alternatives(state) if token == "{" else self._word(state, token)
        return state

    def _word(self, state: int, token: str) -> int:
        optional = len(token) > 2 and token.startswith("(") and token.endswith(")")
        word = token[1:-1] if optional else token
        return self._arc(state, self._new(), None if word == EMPTY else word, optional)

    def _alternatives(self, state: int) -> int:
        ends, empty = list[int](), list[int]()
        self._depth += 1
        if self._depth > MOST_NESTED:
            raise TranscriptError(f"braces are nested more than {MOST_NESTED} deep: {self._text[:SHOWN]!r}")
        while True:
            begin = self._at
            end = self._sequence(state, inside=True)
            (empty if self._tokens[begin : self._at] in ([], [EMPTY]) else ends).append(end)
            if self._at == len(self._tokens) or self._tokens[self._at] != "/":
                break
            self._at += 1
        if self._at == len(self._tokens):
            raise TranscriptError(f"a brace is not closed: {self._text[:SHOWN]!r}")
        self._at += 1
        self._depth -= 1
        joint = self._new()
        for end in [*ends, *empty]:  # of equally good alternatives, no word comes last
            self._arc(end, joint, None, optional=False)
        return joint

    def _new(self) -> int:
        self._states += 1
        return self._states - 1

    def _arc(self, start: int, end: int, word: str | None, optional: bool) -> int:
        self._arcs.append(Arc(start, end, word, optional))
        return end


class Pair(NamedTuple):
    """One step of an alignment; a side is None where a word is inserted or deleted."""

    reference: str | None
    hypothesis: str | None
    kind: Literal["correct", "substitution", "deletion", "insertion"]


class _Cell(NamedTuple):
    """The cheapest way to a state and a number of words: its cost, its last step, and the way before that."""

    cost: float
    pair: Pair | None
    before: _Cell | None


def align(network: WordNetwork, hypothesis: Sequence[str]) -> list[Pair]:
    """Return the cheapest alignment of a path of the network with the words of a hypothesis.

    Of equally cheap alignments, the steps that sclite seems to prefer are chosen; the total cost does not depend on it.
    """
    into: dict[int, list[Arc]] = {}
    for arc in network.arcs:
        into.setdefault(arc.end, []).append(arc)
    cells = {(0, 0): _Cell(0.0, None, None)}
    for state in range(network.last + 1):
        for place in range(len(hypothesis) + 1):
            steps = list(_steps(cells, into.get(state, ()), state, place, hypothesis))
            if steps:
                cells[state, place] = min(steps, key=lambda step: step.cost)
    pairs, cell = list[Pair](), cells.get((network.last, len(hypothesis)))
    while cell is not None:
        pairs += [] if cell.pair is None else [cell.pair]
        cell = cell.before
    return pairs[::-1]


def _steps(
    cells: Mapping[tuple[int, int], _Cell], arcs: Sequence[Arc], state: int, place: int, hypothesis: Sequence[str]
) -> Iterator[_Cell]:
    """Yield the steps into a cell, preferred ones first: both words, deletions, insertions, optional words left out."""
    said = hypothesis[place - 1] if place else ""

    def step(cost: float, pair: Pair | None, start: int, taken: int) -> _Cell:
        before = cells[start, place - taken]
        return _Cell(before.cost + cost, pair, before)

    for arc in arcs:
        if arc.word is None:
            yield step(0.0, None, arc.start, 0)
        elif place:
            same = matches(arc.word, said)
            pair = Pair(arc.word, said, "correct" if same else "substitution")
            yield step(0.0 if same else SUBSTITUTION, pair, arc.start, 1)
    spoken = [arc for arc in arcs if arc.word is not None]
    for arc in spoken:
        if not arc.optional:
            yield step(GAP, Pair(arc.word, None, "deletion"), arc.start, 0)
    if place:
        yield step(GAP, Pair(None, said, "insertion"), state, 1)
    for arc in spoken:
        if arc.optional:
            yield step(OPTIONAL_GAP, Pair(arc.word, None, "correct"), arc.start, 0)


def matches(reference: str, hypothesis: str) -> bool:
    """True if two words are the same, or one is a fragment of the other; a reference's fragment counts first."""
    a, b = reference.casefold(), hypothesis.casefold()
    if a == b:
        return True
    return _holds(a, b) if _is_fragment(a) else _is_fragment(b) and _holds(b, a)


def _is_fragment(word: str) -> bool:
    return len(word) > 1 and (word.endswith("-") or word.startswith("-"))


def _holds(fragment: str, word: str) -> bool:
    return word.startswith(fragment[:-1]) if fragment.endswith("-") else word.endswith(fragment[1:])
