"""Recogniser: from scores to words with frames and confidences, by the best path of CTC or a lattice of a graph.

Everything a recogniser needs beside scores and graph can be written as JSON, so that it works without the corpus.
Shapes: scores_UC, U output frames and C columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from murmur.speech.ctc.criterion import Units
from murmur.speech.ctc.words import collapsed, spoken_words, units_between
from murmur.speech.decoding.decoder import Decoder, Hypothesis
from murmur.speech.decoding.lattice import Lattice
from murmur.speech.decoding.word_times import WordTimer, divide
from murmur.speech.hmm.phone_arcs import PhoneArcs

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
    """Spans in an HCLG: the phones of the path, divided among the words' pronunciations."""

    timer: WordTimer

    def __call__(self, found: Hypothesis, emitted: Sequence[int]) -> list[Span]:
        """Spans by phones. For partial hypotheses, whose last word may be cut, from one word to the next."""
        if not found.complete:
            return list(pairwise([*emitted, len(found.labels)]))
        return [(time.first_frame, time.first_frame + time.num_frames) for time in self.timer(found)]

    def to_json(self) -> dict[str, Any]:
        """Pronunciations, and the phones of transition-ids."""
        arcs = self.timer.arcs
        return {
            "lexicon": {word: [list(pron) for pron in prons] for word, prons in self.timer.prons.items()},
            "phone_of": arcs.phone_of.tolist(),
            "is_self_loop": arcs.is_self_loop.astype(int).tolist(),
            "is_final": arcs.is_final.astype(int).tolist(),
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
    return PhoneSpans(WordTimer(content["lexicon"], PhoneArcs(np.array(content["phone_of"], np.int32), stays, leaves)))


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
