"""Word times of a CTC best path, with confidences from the posteriors of their units.

A unit's frames are the run in which it is the best column; a word lasts from the first frame of its first unit to the
last frame of its last unit. These are spikes: they show only when the network is sure, which is inside or shortly after
the sound. A word's confidence is the geometric mean over its units of the greatest posterior in each run: 1 for a
network without doubt, not calibrated.

Shapes: U output frames, C columns; column 0 is the blank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from murmur.speech.ctc.criterion import BLANK, WORD_START, Units


class UnitRun(NamedTuple):
    """A unit's column, its first frame, the frame after its last, and its greatest log posterior."""

    column: int
    first: int
    end: int
    log_posterior: float


class SpokenWord(NamedTuple):
    """A word, its first output frame, the frame after its last, and its confidence."""

    word: str
    first: int
    end: int
    confidence: float


def runs(log_probs_UC: np.ndarray) -> list[UnitRun]:
    """Runs of equal best columns, without blanks (Graves et al. 2006, section 3.2)."""
    return [
        UnitRun(column, first, end, float(log_probs_UC[first:end, column].max()))
        for column, first, end in collapsed(log_probs_UC.argmax(1))
    ]


def spoken_words(log_probs_UC: np.ndarray, units: Units) -> list[SpokenWord]:
    """The words of the best path: the units between spaces; for whole words and phones, each unit."""
    words: list[list[UnitRun]] = [[]]
    for run in runs(log_probs_UC):
        symbol = units.symbols[run.column - 1]
        alone = units.kind in ("word", "phone")
        if alone or symbol == " " or (units.kind == "grapheme" and symbol.startswith(WORD_START)):
            words.append([])
        if symbol != " ":
            words[-1].append(run)
    return [_word(pieces, units) for pieces in words if pieces]


def _word(pieces: list[UnitRun], units: Units) -> SpokenWord:
    text = "".join(units.symbols[run.column - 1] for run in pieces).replace(WORD_START, "")
    mean = sum(run.log_posterior for run in pieces) / len(pieces)
    return SpokenWord(text, pieces[0].first, pieces[-1].end, math.exp(min(mean, 0.0)))


def collapsed(columns_U: np.ndarray) -> list[tuple[int, int, int]]:
    """The units of a path: column, first frame, the frame after the last; repeats are merged, blanks removed."""
    edges = [0, *(np.flatnonzero(np.diff(columns_U)) + 1).tolist(), len(columns_U)]
    spans = pairwise(edges) if len(columns_U) else ()
    return [(int(columns_U[first]), first, end) for first, end in spans if columns_U[first] != BLANK]


def units_between(columns_U: np.ndarray, emitted: Sequence[int]) -> list[tuple[int, int]]:
    """First frame and the frame after the last unit, approximately, for each word of a graph's best path.

    `columns_U` are the columns of the path, `emitted` the frames at which its words are emitted, possibly some frames
    early or late; a word's units are those from there up to the next word's frame. A word without units there has one
    frame.
    """
    found = []
    for first, limit in pairwise([*emitted, len(columns_U)]):
        spoken = [u for u in range(first, limit) if columns_U[u] != BLANK]
        alone = min(first, len(columns_U) - 1)
        found.append((spoken[0], spoken[-1] + 1) if spoken else (alone, alone + 1))
    return found
