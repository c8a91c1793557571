"""When each word of a decoded utterance was spoken, from the phones of the best path.

A graph emits a word somewhere inside it, as early as it is certain; the phones of the path, read off its
transition-ids, give its true edges once they are divided among the pronunciations of the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from murmur.speech.decode import Hypothesis
from murmur.speech.hmm.transitions import Transitions
from murmur.speech.lexicon import SILENCE_ID, Lang


class WordTime(NamedTuple):
    """A word, its first frame and its number of frames."""

    word: str
    first_frame: int
    num_frames: int


class _Piece(NamedTuple):
    """A word on phones `begin` ... `end` - 1; `previous` is where the word before it ended."""

    previous: int
    begin: int
    end: int


def word_times(lang: Lang, transitions: Transitions, hypothesis: Hypothesis) -> list[WordTime]:
    """The words of a complete hypothesis of an HCLG in time; pauses between words belong to none.

    Of several ways to divide the phones one is taken. Raises ValueError where the words' pronunciations do not spell
    the phones of the path: for a partial hypothesis, or another lexicon than the graph's.
    """
    tids_T = np.asarray(hypothesis.labels, dtype=np.int32)
    transitions.check_ids(tids_T)
    starts = transitions.phone_starts(tids_T)
    phones = transitions.phone_of[tids_T[starts]].tolist()
    edges = [*starts.tolist(), len(tids_T)]
    pieces = _divide(_pronunciations(lang, hypothesis.words), phones)
    return [
        WordTime(word, edges[piece.begin], edges[piece.end] - edges[piece.begin])
        for word, piece in zip(hypothesis.words, pieces, strict=True)
    ]


def _pronunciations(lang: Lang, words: Sequence[str]) -> list[list[list[int]]]:
    wanted = {word: list[list[int]]() for word in words}
    for pron in lang.prons:
        if pron.word in wanted:
            wanted[pron.word].append(list(pron.phones))
    return [wanted[word] for word in words]


def _divide(prons: list[list[list[int]]], phones: list[int]) -> list[_Piece]:
    """The phones of each word, by following all ways to place the words one after the other."""
    ways: list[dict[int, _Piece]] = []
    ends = [0]
    for choices in prons:
        reached: dict[int, _Piece] = {}
        for previous in ends:
            for begin in _after_pause(phones, previous):
                for pron in choices:
                    end = begin + len(pron)
                    if phones[begin:end] == pron:
                        reached.setdefault(end, _Piece(previous, begin, end))
        ways.append(reached)
        ends = list(reached)
    complete = [end for end in ends if len(phones) in _after_pause(phones, end)]
    if not complete:
        raise ValueError("the words of the hypothesis do not spell its phones: is it partial, or of another lexicon?")
    pieces, end = [], complete[0]
    for reached in reversed(ways):
        pieces.append(reached[end])
        end = reached[end].previous
    return pieces[::-1]


def _after_pause(phones: list[int], position: int) -> list[int]:
    """Where the next word may begin: here, or behind one silence."""
    pause = position < len(phones) and phones[position] == SILENCE_ID
    return [position, position + 1] if pause else [position]
