"""Transcribes recordings: words with times and confidences.

A network computes the scores of a search, or in its place the speaker-adapted Gaussian system of a run, in two passes:
the paths of the first give the speaker's transform, the second searches adapted features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from murmur.core.errors import SettingError
from murmur.speech.corpus.recordings import Recording, cut_at_silences, has_signal
from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.graph_store import StoredGraph
from murmur.speech.decoding.recogniser import CtcBestPath, GraphSearch, RecognisedWord, Recogniser, Spans
from murmur.speech.decoding.transcript import Transcript, Word
from murmur.speech.features.analysis import LogMel, Mfcc
from murmur.speech.features.derived import DerivedFeatures
from murmur.speech.recognition.run_records import scales_of
from murmur.speech.recognition.trained_run import TrainedRun, TransformSearch, analysed
from murmur.speech.recognition.tuning import SearchRequest, graph_folder, to_the_end
from murmur.speech.tasks.speaker_inputs import narrow
from murmur.speech.tasks.word_search import WordSearch

AROUND_SECONDS = 0.5


class Pieces(NamedTuple):
    """Pieces of a recording, (first sample, last one + 1): all of them, and those of at least one window."""

    every: Sequence[tuple[int, int]]
    long_enough: Sequence[tuple[int, int]]


class Acoustics(Protocol):
    """Network, or Gaussian system, that computes scores from samples."""

    @property
    def front(self) -> LogMel | Mfcc:
        """Front end that computes the features."""

    @property
    def stack(self) -> int:
        """Input frames per output frame."""

    def scores_of(self, pieces: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """(U, C) scores of each piece of all speech of one speaker, from its samples, computed as they are taken."""


@dataclass(frozen=True, eq=False)
class Transcriber:
    """Network with its search."""

    network: Acoustics
    recogniser: Recogniser
    longest_seconds: float = 30.0  # longer recordings are cut at silences

    @property
    def rate_hz(self) -> int:
        """Sample rate of the recordings."""
        return self.network.front.rate_hz

    def __call__(self, recordings: Sequence[tuple[Recording, str]]) -> list[Transcript]:
        """Transcribe all recordings of one speaker, each with its source, at the sample rate of the front end."""
        cut = [self._pieces(recording) for recording, _ in recordings]
        samples = [
            recording.samples[first:end]
            for (recording, _), pieces in zip(recordings, cut, strict=True)
            for first, end in pieces.long_enough
        ]
        scores = self.network.scores_of(samples)
        pairs = zip(recordings, cut, strict=True)
        return [self._transcribed(recording, source, pieces, scores) for (recording, source), pieces in pairs]

    def _pieces(self, recording: Recording) -> Pieces:
        every = cut_at_silences(recording.samples, recording.rate_hz, self.longest_seconds)
        window = self.network.front.frame_length_seconds * recording.rate_hz
        return Pieces(every, [(first, end) for first, end in every if end - first >= window])

    def _transcribed(
        self, recording: Recording, source: str, pieces: Pieces, scores: Iterator[np.ndarray]
    ) -> Transcript:
        """Transcribe a recording; `scores` begins with those of its pieces.

        A search finds words in anything, so pieces of digital silence are not searched, and words in it are left out.
        """
        rate_hz = recording.rate_hz
        words: list[Word] = []
        incomplete = False
        for first, end in pieces.long_enough:
            scores_UC = next(scores)
            if not has_signal(recording.samples[first:end]):
                continue
            recognised, complete = self.recogniser(scores_UC)
            incomplete = incomplete or not complete
            found = (self._word(each, first / rate_hz, recording.seconds) for each in recognised)
            words += [word for word in found if _has_signal(recording, word)]
        return Transcript(
            source,
            recording.seconds,
            tuple(words),
            tuple((first / rate_hz, end / rate_hz) for first, end in pieces.every),
            incomplete,
            recording.changes,
            too_short=not pieces.long_enough,
            silent=not has_signal(recording.samples),
            channel=name_of(recording),
        )

    def _word(self, found: RecognisedWord, begin_seconds: float, seconds: float) -> Word:
        frame_seconds = self.network.front.frame_shift_seconds * self.network.stack
        start, end = (min(begin_seconds + frame * frame_seconds, seconds) for frame in (found.first, found.end))
        return Word(found.word, start, end, found.confidence)


def _has_signal(recording: Recording, word: Word) -> bool:
    """True if there is a signal at a word, or close to it, since the times of words are not exact."""
    first = max(word.start_seconds - AROUND_SECONDS, 0.0)
    end = word.end_seconds + AROUND_SECONDS
    return has_signal(recording.samples[int(first * recording.rate_hz) : int(end * recording.rate_hz)])


def name_of(recording: Recording) -> str:
    """Return the name of a channel: A or B of two as in NIST's files, its number of more; "" if there is no choice."""
    if recording.channel is None:
        return ""
    return "AB"[recording.channel] if recording.channels == 2 else str(recording.channel + 1)


def transcriber(run: TrainedRun, graph: Callable[[], GraphSearch] | None, longest_seconds: float) -> Transcriber:
    """Make the transcriber of a run, by the search in a graph, or without one by the best path."""
    return Transcriber(run, CtcBestPath(run.units) if graph is None else graph(), longest_seconds)


def graph_search(search: WordSearch, options: DecodeOptions) -> Callable[[], GraphSearch]:
    """Function that reads the graph of a search, which is built if it is missing.

    A process that gets it reads no lexicon or language model.
    """
    graph = StoredGraph.of(graph_folder(search))
    return partial(_read, graph, search.spans(np.array(graph.columns, dtype=np.int32)), options)


def _read(graph: StoredGraph, spans: Spans, options: DecodeOptions) -> GraphSearch:
    return GraphSearch(Decoder(graph.read(), options), spans)


@dataclass(frozen=True, eq=False)
class AdaptedScores:
    """Scores of a speaker-adapted Gaussian system, adapted to the speaker."""

    stack: ClassVar[int] = 1

    front: Mfcc
    estimate: TransformSearch

    def scores_of(self, pieces: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """(T, P) log-likelihoods of each piece; with too little speech, those of the unadapted model."""
        cepstra = analysed(pieces, self.front)
        speakers = dict.fromkeys(cepstra, "")
        feats = dict(DerivedFeatures.gaussian(cepstra, speakers))
        transform = self.estimate(feats, speakers).get("")
        for feats_TF in feats.values():
            yield self.estimate.gaussians.pair.loglikes(feats_TF, transform)


def adapted_transcriber(run: TrainedRun, request: SearchRequest, longest_seconds: float) -> Transcriber:
    """Make the transcriber of a run's speaker-adapted Gaussian system; builds its graph if it is missing.

    Raises:
        SettingError: the run has no such system, or no acoustic scale for it, or the options fit its network alone.
    """
    gaussians, search = run.recogniser.adapted, run.search(request.grammar)
    if gaussians is None or search is None:
        raise SettingError(
            f"--adapt: {run.folder} has no speaker-adapted Gaussian system, and a network trained on unadapted features"
            " cannot use a transform. A hybrid system on audio with 'task.hmm.sat=SatConfig()' has one, a chain model"
            " has none; leave --adapt out"
        )
    if not isinstance(gaussians.front, Mfcc):
        raise SettingError(
            f"--adapt: the Gaussian system of {run.folder} takes features that its corpus brings, which murmur cannot"
            " compute from audio; leave --adapt out"
        )
    if request.dev is not None:
        raise SettingError("--dev tunes the search of the network: with --adapt give --scale and --penalty")
    systems = (f"{gaussians.name} unadapted", gaussians.name)
    first, last = (_options(run, system, request) for system in systems)
    graph_folder(search)
    estimate = TransformSearch(gaussians, search, narrow(first))
    decoder = Decoder(estimate.graph, to_the_end(last, request.grammar))
    recogniser = GraphSearch(decoder, search.spans(decoder.graph.columns))
    return Transcriber(AdaptedScores(gaussians.front, estimate), recogniser, longest_seconds)


def _options(run: TrainedRun, system: str, request: SearchRequest) -> DecodeOptions:
    settings = {**scales_of(run.folder, system), **request.changes}  # those of the network are of another scale
    if "acoustic_scale" not in settings:
        raise SettingError(
            f"--adapt: {run.folder} has no score.json with an acoustic scale tuned on dev for its system {system!r}: "
            "give --scale, such as 0.06"
        )
    return replace(DecodeOptions(), **settings)
