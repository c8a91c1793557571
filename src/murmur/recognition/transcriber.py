"""Transcribes a recording with a trained network: words with times and confidences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np

from murmur.recognition.trained_run import TrainedRun
from murmur.recognition.tuning import graph_folder
from murmur.speech.corpus.channel_mean import has_signal
from murmur.speech.corpus.recordings import Recording, cut_at_silences
from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.graph_store import StoredGraph
from murmur.speech.decoding.recogniser import (
    CtcBestPath,
    GraphSearch,
    RecognisedWord,
    Recogniser,
    Spans,
)
from murmur.speech.decoding.transcript import Transcript, Word
from murmur.speech.features.analysis import LogMel, Mfcc
from murmur.tasks.word_search import WordSearch

AROUND_SECONDS = 0.5


class Pieces(NamedTuple):
    """Pieces of a recording, (first sample, last one + 1): all of them, and those of at least one window."""

    every: Sequence[tuple[int, int]]
    long_enough: Sequence[tuple[int, int]]


class Acoustics(Protocol):
    """Network, or Gaussian system, that computes scores from features."""

    @property
    def front(self) -> LogMel | Mfcc:
        """Front end that computes the features."""

    @property
    def stack(self) -> int:
        """Input frames per output frame."""

    def inputs(self, pieces: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Features of all speech of one speaker, (T, F) for the samples of each piece."""

    def scores(self, feats_TF: np.ndarray) -> np.ndarray:
        """(U, C) scores of the features of a piece."""


@dataclass(frozen=True, eq=False)
class Transcriber:
    """Network with its search.

    Attributes:
        network: Network that computes scores.
        recogniser: Search that finds words in the scores.
        longest_seconds: Limit above which a recording is cut at silences.
    """

    network: Acoustics
    recogniser: Recogniser
    longest_seconds: float = 30.0

    @property
    def front(self) -> LogMel | Mfcc:
        """Front end of the network."""
        return self.network.front

    def __call__(self, recording: Recording, source: str) -> Transcript:
        """Transcribe a recording that has the sample rate of the front end, as the speech of one speaker."""
        (found,) = self.of_speaker([(recording, source)])
        return found

    def of_speaker(self, recordings: Sequence[tuple[Recording, str]]) -> list[Transcript]:
        """Transcribe all recordings of one speaker, each with its source, at the sample rate of the front end."""
        cut = [cut_into_pieces(recording, self.front, self.longest_seconds) for recording, _ in recordings]
        feats = iter(self.network.inputs(samples_of(recordings, cut)))
        return [
            self.of_features(recording, source, pieces, list(islice(feats, len(pieces.long_enough))))
            for (recording, source), pieces in zip(recordings, cut, strict=True)
        ]

    def of_features(self, recording: Recording, source: str, pieces: Pieces, feats: Sequence[np.ndarray]) -> Transcript:
        """Transcribe a recording; `feats` are the features of the pieces that are long enough.

        A search finds words in anything, so pieces of digital silence are not searched, and words in it are left out.
        """
        rate_hz = recording.rate_hz
        words: list[Word] = []
        partial = False
        for (first, end), feats_TF in zip(pieces.long_enough, feats, strict=True):
            if not has_signal(recording.samples[first:end]):
                continue
            recognised, complete = self.recogniser(self.network.scores(feats_TF))
            partial = partial or not complete
            found = (self._word(each, first / rate_hz, recording.seconds) for each in recognised)
            words += [word for word in found if _has_signal(recording, word)]
        spans = tuple((first / rate_hz, end / rate_hz) for first, end in pieces.every)
        return Transcript(
            source,
            recording.seconds,
            tuple(words),
            spans,
            partial,
            recording.changes,
            too_short=not pieces.long_enough,
            silent=not has_signal(recording.samples),
            channel=name_of(recording),
        )

    def _word(self, found: RecognisedWord, begin_seconds: float, seconds: float) -> Word:
        frame_seconds = self.front.frame_shift_seconds * self.network.stack
        start, end = (min(begin_seconds + frame * frame_seconds, seconds) for frame in (found.first, found.end))
        return Word(found.word, start, end, found.confidence)


def _has_signal(recording: Recording, word: Word) -> bool:
    """True if there is a signal at a word, or close to it, since the times of words are not exact."""
    first = max(word.start_seconds - AROUND_SECONDS, 0.0)
    end = word.end_seconds + AROUND_SECONDS
    return has_signal(recording.samples[int(first * recording.rate_hz) : int(end * recording.rate_hz)])


def cut_into_pieces(recording: Recording, front: LogMel | Mfcc, longest_seconds: float) -> Pieces:
    """Cut a recording at silences into pieces of at most `longest_seconds`."""
    rate_hz = recording.rate_hz
    every = cut_at_silences(recording.samples, rate_hz, longest_seconds)
    window = front.frame_length_seconds * rate_hz
    return Pieces(every, [(first, end) for first, end in every if end - first >= window])


def samples_of(recordings: Sequence[tuple[Recording, str]], cut: Sequence[Pieces]) -> list[np.ndarray]:
    """Samples of all pieces that are long enough, recording after recording."""
    return [
        recording.samples[first:end]
        for (recording, _), pieces in zip(recordings, cut, strict=True)
        for first, end in pieces.long_enough
    ]


def name_of(recording: Recording) -> str:
    """Return the name of a channel: A or B of two as in NIST's files, its number of more; "" if there is no choice."""
    if recording.channel is None:
        return ""
    return "AB"[recording.channel] if recording.channels == 2 else str(recording.channel + 1)


@dataclass(frozen=True)
class SearchedGraph:
    """A stored graph with its search: enough for a process of its own, which then reads no lexicon or language model.

    Attributes:
        graph: the graph.
        spans: rule that finds the frames of words.
        options: settings of the search.
    """

    graph: StoredGraph
    spans: Spans
    options: DecodeOptions

    @staticmethod
    def of(search: WordSearch, options: DecodeOptions) -> SearchedGraph:
        """Find the graph of a search; builds it if it is missing."""
        graph = StoredGraph.of(graph_folder(search))
        return SearchedGraph(graph, search.spans(np.array(graph.columns, dtype=np.int32)), options)

    def read(self) -> GraphSearch:
        """Read the graph."""
        return GraphSearch(Decoder(self.graph.read(), self.options), self.spans)


def transcriber(run: TrainedRun, graph: SearchedGraph | None, longest_seconds: float) -> Transcriber:
    """Make the transcriber of a run, by the search in a graph, or without one by the best path."""
    if graph is not None:
        return Transcriber(run, graph.read(), longest_seconds)
    units = run.graphs.units
    assert units is not None  # networks without units have no best path
    return Transcriber(run, CtcBestPath(units), longest_seconds)
