"""Times of the words of a decoded utterance, from the phones of the best path.

A graph emits a word somewhere inside it, as early as it is certain; the phones of the path, read from its
transition-ids, give the exact edges once they are divided among the pronunciations of the words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from murmur.speech.decoding.decoder import Hypothesis
from murmur.speech.hmm.phone_arcs import PhoneArcs
from murmur.speech.hmm.transitions import Transitions
from murmur.speech.lexicon.lexicon import SILENCE_ID, Lang


class WordTime(NamedTuple):
    """A word, its first frame and its number of frames."""

    word: str
    first_frame: int
    num_frames: int


class Piece(NamedTuple):
    """A word on phones `begin` ... `end` - 1; `previous` is the end of the word before it."""

    previous: int
    begin: int
    end: int


@dataclass(frozen=True, eq=False)
class WordTimer:
    """Finds the times of the words of complete hypotheses.

    Attributes:
        prons: pronunciations of each word, as phone labels.
        arcs: phones of the graph's transition-ids.
    """

    prons: Mapping[str, Sequence[Sequence[int]]]
    arcs: PhoneArcs

    @staticmethod
    def of(lang: Lang, transitions: Transitions) -> WordTimer:
        """The timer of an HCLG's lexicon and transition model."""
        prons: dict[str, list[tuple[int, ...]]] = {}
        for pron in lang.prons:
            prons.setdefault(pron.word, []).append(pron.phones)
        return WordTimer(prons, transitions.arcs)

    def __call__(self, hypothesis: Hypothesis) -> list[WordTime]:
        """The words of a complete hypothesis of an HCLG with their times; pauses between words belong to none.

        If the phones can be divided in several ways, one is taken. Raises ValueError if the words' pronunciations do
        not spell the phones of the path: for a partial hypothesis, or another lexicon than the graph's.
        """
        tids_T = np.asarray(hypothesis.labels, dtype=np.int32)
        self.arcs.check(tids_T)
        starts = self.arcs.starts(tids_T)
        phones = self.arcs.phone_of[tids_T[starts]].tolist()
        edges = [*starts.tolist(), len(tids_T)]
        pieces = divide([self.prons.get(word, ()) for word in hypothesis.words], phones, SILENCE_ID)
        return [
            WordTime(word, edges[piece.begin], edges[piece.end] - edges[piece.begin])
            for word, piece in zip(hypothesis.words, pieces, strict=True)
        ]


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
