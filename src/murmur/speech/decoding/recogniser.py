"""Recogniser: from scores to words with frames and confidences, by the best path of CTC or a lattice of a graph.

A graph emits a word somewhere inside it, as early as it is certain; the phones of the path, read from its
transition-ids, give the exact edges once they are divided among the pronunciations of the words.

Everything a recogniser needs beside scores and graph can be written as JSON, so that it works without the corpus.
Shapes: scores_UC, U output frames and C columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from murmur.speech.ctc import Units, collapsed, spoken_words, units_between
from murmur.speech.decoding.decoder import Decoder, Hypothesis
from murmur.speech.decoding.lattice import Lattice
from murmur.speech.hmm.transitions import PhoneArcs, Transitions
from murmur.speech.lexicon.lexicon import SILENCE_ID, Lang


class Piece(NamedTuple):
    """A word on phones `begin` ... `end` - 1; `previous` is the end of the word before it."""

    previous: int
    begin: int
    end: int


def divide(prons: Sequence[Sequence[Sequence[int]]], labels: Sequence[int], pause: int | None) -> list[Piece]:
    """The labels of each word, found by trying all ways to place the words in sequence; `pause` may lie between words.

    Raises:
        ValueError: there is no way.
    """
    ways: list[dict[int, Piece]] = []
    ends = [0]
    for choices in prons:
        reached: dict[int, Piece] = {}
        for previous in ends:
            for begin in _after_pause(labels, previous, pause):
                for pron in choices:
                    end = begin + len(pron)
                    if list(labels[begin:end]) == list(pron):
                        reached.setdefault(end, Piece(previous, begin, end))
        ways.append(reached)
        ends = list(reached)
    complete = [end for end in ends if len(labels) in _after_pause(labels, end, pause)]
    if not complete:
        raise ValueError("the words of the hypothesis do not spell its phones: is it partial, or of another lexicon?")
    pieces, end = [], complete[0]
    for reached in reversed(ways):
        pieces.append(reached[end])
        end = reached[end].previous
    return pieces[::-1]


def _after_pause(labels: Sequence[int], position: int, pause: int | None) -> list[int]:
    """Positions at which the next word may begin: here, or after one pause."""
    paused = position < len(labels) and labels[position] == pause
    return [position, position + 1] if paused else [position]


Span = tuple[int, int]


@dataclass(frozen=True)
class RecognisedWord:
    """A word of one piece in output frames: the first, the frame after the last, and the confidence."""

    word: str
    first: int
    end: int
    confidence: float


class Recogniser(Protocol):
    """A search for words in scores (U, C)."""

    def __call__(self, scores_UC: np.ndarray) -> tuple[list[RecognisedWord], bool]:
        """The words, and True if the search ended at a possible end of its grammar."""


class Spans(Protocol):
    """Frame spans of the words of a graph's best path: the first frame, and one past the last."""

    def __call__(self, found: Hypothesis, emitted: Sequence[int]) -> list[Span]:
        """The spans of the words; `emitted` is the frame at which each word comes out of the graph."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `spans_of` restores the object."""


@dataclass(frozen=True, eq=False)
class PhoneSpans:
    """Spans in an HCLG: the phones of the path, divided among the words' pronunciations.

    Attributes:
        prons: pronunciations of each word, as phone labels.
        arcs: phones of the graph's transition-ids.
    """

    prons: Mapping[str, Sequence[Sequence[int]]]
    arcs: PhoneArcs

    @staticmethod
    def of(lang: Lang, transitions: Transitions) -> PhoneSpans:
        """The spans of an HCLG's lexicon and transition model."""
        prons: dict[str, list[tuple[int, ...]]] = {}
        for pron in lang.prons:
            prons.setdefault(pron.word, []).append(pron.phones)
        return PhoneSpans(prons, transitions.arcs)

    def __call__(self, found: Hypothesis, emitted: Sequence[int]) -> list[Span]:
        """Spans by phones. For partial hypotheses, whose last word may be cut, from one word to the next."""
        if not found.complete:
            return list(pairwise([*emitted, len(found.labels)]))
        return self.of_words(found.words, found.labels)

    def of_words(self, words: Sequence[str], tids_T: np.ndarray) -> list[Span]:
        """Spans of the words on a path of transition-ids; pauses between words belong to none.

        If the phones can be divided in several ways, one is taken. Raises ValueError if the words' pronunciations do
        not spell the phones of the path: for a partial hypothesis, or another lexicon than the graph's.
        """
        tids_T = np.asarray(tids_T, dtype=np.int32)
        self.arcs.check(tids_T)
        starts = self.arcs.starts(tids_T)
        phones = self.arcs.phone_of[tids_T[starts]].tolist()
        edges = [*starts.tolist(), len(tids_T)]
        pieces = divide([self.prons.get(word, ()) for word in words], phones, SILENCE_ID)
        return [(edges[piece.begin], edges[piece.end]) for piece in pieces]

    def to_json(self) -> dict[str, Any]:
        """Pronunciations, and the phones of transition-ids."""
        return {
            "lexicon": {word: [list(pron) for pron in prons] for word, prons in self.prons.items()},
            "phone_of": self.arcs.phone_of.tolist(),
            "is_self_loop": self.arcs.is_self_loop.astype(int).tolist(),
            "is_final": self.arcs.is_final.astype(int).tolist(),
        }


@dataclass(frozen=True, eq=False)
class UnitSpans:
    """Spans in a CTC graph: the frames in which the path has the units of a word.

    Attributes:
        columns: column of the unit of each input label.
        spellings: possible spellings of each word, as columns.
        separator: column of the unit between two words; None if there is none.
    """

    columns: np.ndarray
    spellings: Mapping[str, Sequence[Sequence[int]]]
    separator: int | None = None

    def __call__(self, found: Hypothesis, emitted: Sequence[int]) -> list[Span]:
        """Spans by spellings. For a partial hypothesis, whose last word may be cut, spans around the emitted frames."""
        columns_U = self.columns[found.labels - 1]
        if not found.complete:
            return units_between(columns_U, emitted)
        units = collapsed(columns_U)
        ways = [self.spellings.get(word, ()) for word in found.words]
        pieces = divide(ways, [column for column, _, _ in units], self.separator)
        return [(units[piece.begin][1], units[piece.end - 1][2]) for piece in pieces]

    def to_json(self) -> dict[str, Any]:
        """Columns, spellings, separator."""
        return {
            "columns": self.columns.tolist(),
            "spellings": {word: [list(spelt) for spelt in ways] for word, ways in self.spellings.items()},
            "separator": self.separator,
        }


def spans_of(content: Mapping[str, Any]) -> Spans:
    """Restore an object from the output of `to_json`.

    Raises:
        KeyError, TypeError, ValueError: the content has another form.
    """
    if "columns" in content:
        return UnitSpans(np.array(content["columns"], np.int32), content["spellings"], content["separator"])
    stays, leaves = (np.array(content[name], bool) for name in ("is_self_loop", "is_final"))
    return PhoneSpans(content["lexicon"], PhoneArcs(np.array(content["phone_of"], np.int32), stays, leaves))


@dataclass(frozen=True, eq=False)
class CtcBestPath:
    """CTC recognition without a graph."""

    units: Units

    def __call__(self, scores_UC: np.ndarray) -> tuple[list[RecognisedWord], bool]:
        """The words of the best columns."""
        return [RecognisedWord(*word) for word in spoken_words(scores_UC, self.units)], True


@dataclass(frozen=True, eq=False)
class GraphSearch:
    """A search of a graph, with posteriors from its lattice."""

    decoder: Decoder
    spans: Spans

    def __call__(self, scores_UC: np.ndarray) -> tuple[list[RecognisedWord], bool]:
        """The words of the lattice's best path."""
        lattice, complete = self.decoder.lattice(scores_UC)
        if lattice is None:
            return [], not len(scores_UC)
        found, emitted = self.decoder.best_of(lattice, complete)
        labels = [self.label_of[word] for word in found.words]
        sure = Lattice.of(lattice).confidences(labels, emitted)
        spans = self.spans(found, emitted)
        return [RecognisedWord(w, *span, c) for w, span, c in zip(found.words, spans, sure, strict=True)], complete

    @cached_property
    def label_of(self) -> dict[str, int]:
        """Word labels of the graph."""
        return {word: label for label, word in enumerate(self.decoder.graph.words)}
