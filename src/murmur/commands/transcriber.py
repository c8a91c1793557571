"""From a recording to words with times and confidences, by a trained run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np

from murmur.commands.hybrid_search import HybridSearch
from murmur.commands.trained_run import TrainedRun, graph_folder
from murmur.recipes.ctc import CtcTask
from murmur.speech.cmvn import normalise, statistics
from murmur.speech.ctc import Units
from murmur.speech.ctc_words import spoken_words, units_between
from murmur.speech.decode import DecodeOptions, Decoder
from murmur.speech.features import LogMel, analyse
from murmur.speech.graph_store import StoredGraph
from murmur.speech.hmm.transitions import Transitions
from murmur.speech.lattice import Lattice
from murmur.speech.lexicon import Lang
from murmur.speech.recordings import Recording, cut_at_silences
from murmur.speech.transcript import Transcript, Word
from murmur.speech.word_times import word_times


@dataclass(frozen=True)
class Heard:
    """A word of one piece in output frames: first, behind the last, and how sure."""

    word: str
    first: int
    end: int
    confidence: float


class Listener(Protocol):
    """What finds words in scores (U, C)."""

    def __call__(self, scores_UC: np.ndarray) -> tuple[list[Heard], bool]:
        """The words, and whether the search ended where its grammar may."""


@dataclass(frozen=True, eq=False)
class BestPath:
    """CTC without a graph."""

    units: Units

    def __call__(self, scores_UC: np.ndarray) -> tuple[list[Heard], bool]:
        """The words of the best columns."""
        return [Heard(*word) for word in spoken_words(scores_UC, self.units)], True


@dataclass(frozen=True, eq=False)
class GraphSearch:
    """A search of a graph with posteriors from its lattice; `times` are the pronunciations behind an HCLG."""

    decoder: Decoder
    lang: Lang | None = None
    transitions: Transitions | None = None

    def __call__(self, scores_UC: np.ndarray) -> tuple[list[Heard], bool]:
        """The words of the lattice's best path."""
        lattice, complete = self.decoder.lattice(scores_UC)
        if lattice is None:
            return [], not len(scores_UC)
        found, emitted = self.decoder.best_of(lattice, complete)
        labels = [self.label_of[word] for word in found.words]
        sure = Lattice.of(lattice).confidences(labels, emitted)
        if self.lang is None or self.transitions is None:
            columns_U = self.decoder.graph.columns[found.labels - 1]
            spans = units_between(columns_U, emitted)
        elif complete:
            times = word_times(self.lang, self.transitions, found)
            spans = [(time.first_frame, time.first_frame + time.num_frames) for time in times]
        else:  # the last word may be cut: the phones of the path do not spell the words
            spans = list(pairwise([*emitted, len(scores_UC)]))
        return [Heard(w, *span, c) for w, span, c in zip(found.words, spans, sure, strict=True)], complete

    @cached_property
    def label_of(self) -> dict[str, int]:
        """Word labels of the graph."""
        return {word: label for label, word in enumerate(self.decoder.graph.words)}


@dataclass(frozen=True, eq=False)
class Transcriber:
    """A run with its search.

    Attributes:
        run: the trained network.
        listen: what finds words in its scores.
        longest_seconds: longer recordings are cut at silences.
    """

    run: TrainedRun
    listen: Listener
    longest_seconds: float = 30.0

    @property
    def front(self) -> LogMel:
        """What makes its features."""
        return self.run.front

    def __call__(self, recording: Recording, source: str) -> Transcript:
        """The words of a recording at the rate of the front end."""
        rate_hz, front = recording.rate_hz, self.front
        window = front.frame_length_seconds * rate_hz
        pieces = cut_at_silences(recording.samples, rate_hz, self.longest_seconds)
        long_enough = [(first, end) for first, end in pieces if end - first >= window]
        feats = self._normal([analyse(recording.samples[first:end], front) for first, end in long_enough])
        words: list[Word] = []
        partial = False
        for (first, _), feats_TF in zip(long_enough, feats, strict=True):
            heard, complete = self.listen(self.run.scores(feats_TF))
            partial = partial or not complete
            words += [self._word(h, first / rate_hz, recording.seconds) for h in heard]
        spans = tuple((first / rate_hz, end / rate_hz) for first, end in pieces)
        return Transcript(source, recording.seconds, tuple(words), spans, partial, recording.changes)

    def _normal(self, feats: Sequence[np.ndarray]) -> list[np.ndarray]:
        """By each piece's own statistics, or by those of the recording where training had those of speakers."""
        if self.run.cmvn == "none" or not feats:
            return list(feats)
        if self.run.cmvn == "speaker":
            pair = statistics(feats)
            return [normalise(feats_TF, *pair) for feats_TF in feats]
        return [normalise(feats_TF, *statistics([feats_TF])) for feats_TF in feats]

    def _word(self, heard: Heard, begin_seconds: float, seconds: float) -> Word:
        frame_seconds = self.front.frame_shift_seconds * self.run.stack
        start, end = (min(begin_seconds + frame * frame_seconds, seconds) for frame in (heard.first, heard.end))
        return Word(heard.word, start, end, heard.confidence)


def transcriber(run: TrainedRun, grammar: str | None, options: DecodeOptions, longest_seconds: float) -> Transcriber:
    """The transcriber of a run, its graph built where it is missing.

    Raises:
        ValueError: there is no such grammar.
    """
    search = run.search(grammar)
    if search is None:
        assert isinstance(run.task, CtcTask)
        return Transcriber(run, BestPath(run.task.data.units), longest_seconds)
    decoder = Decoder(StoredGraph.of(graph_folder(search)).read(), options)
    if isinstance(search, HybridSearch):
        listen = GraphSearch(decoder, search.lang, search.stage.model.transitions)
    else:
        listen = GraphSearch(decoder)
    return Transcriber(run, listen, longest_seconds)
