"""Transcribes the recordings of one speaker with a speaker-adapted Gaussian system, in two passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from murmur.core.errors import SettingError
from murmur.recognition.run_records import scales_of
from murmur.recognition.trained_run import TrainedRun
from murmur.recognition.transcriber import Transcriber, cut_into_pieces, samples_of
from murmur.recognition.tuning import SearchRequest, graph_folder, to_the_end
from murmur.speech.corpus.recordings import Recording
from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.graph_store import StoredGraph
from murmur.speech.decoding.recogniser import GraphSearch
from murmur.speech.decoding.transcript import Transcript
from murmur.speech.features.analysis import Mfcc, analyse
from murmur.speech.hmm.mixtures import FloatArray
from murmur.tasks.adapted_gaussians import AdaptedGaussians
from murmur.tasks.speaker_inputs import narrow
from murmur.tasks.word_search import WordSearch


@dataclass(frozen=True, eq=False)
class AdaptedSpeaker:
    """Scores of a speaker whose transform is known; features are those of `AdaptedGaussians.features`.

    Attributes:
        gaussians: the Gaussian system.
        transform: W (D, D + 1) of the speaker; None for too little speech.
    """

    gaussians: AdaptedGaussians
    transform: FloatArray | None = None
    stack: int = 1

    @property
    def front(self) -> Mfcc:
        """Front end of the Gaussian system."""
        front = self.gaussians.front
        assert isinstance(front, Mfcc)  # see `adapted_transcriber`
        return front

    def inputs(self, pieces: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Features of all speech of the speaker, neither projected nor adapted."""
        return self.gaussians.features([analyse(samples_S, self.front) for samples_S in pieces]) if pieces else []

    def scores(self, feats_TF: np.ndarray) -> np.ndarray:
        """(T, P) log-likelihoods."""
        return self.gaussians.scores(feats_TF, self.transform)


@dataclass(frozen=True, eq=False)
class AdaptedTranscriber:
    """Gaussian system with the searches of its passes.

    Attributes:
        gaussians: the Gaussian system.
        first: search with the model of unadapted features.
        search: search for the best words after adaptation, with their confidences.
        longest_seconds: limit above which a recording is cut at silences.
    """

    gaussians: AdaptedGaussians
    first: Decoder
    search: GraphSearch
    longest_seconds: float = 30.0

    @property
    def front(self) -> Mfcc:
        """Front end of the Gaussian system."""
        return AdaptedSpeaker(self.gaussians).front

    def __call__(self, recordings: Sequence[tuple[Recording, str]]) -> list[Transcript]:
        """Transcribe all recordings of one speaker, each with its source, at the sample rate of the front end."""
        cut = [cut_into_pieces(recording, self.front, self.longest_seconds) for recording, _ in recordings]
        feats = AdaptedSpeaker(self.gaussians).inputs(samples_of(recordings, cut))
        speaker = AdaptedSpeaker(self.gaussians, self._transform(feats))
        adapted = Transcriber(speaker, self.search, self.longest_seconds)
        left, found = iter(feats), []
        for (recording, source), pieces in zip(recordings, cut, strict=True):
            own = list(islice(left, len(pieces.long_enough)))
            found.append(adapted.of_features(recording, source, pieces, own))
        return found

    def _transform(self, feats: Sequence[np.ndarray]) -> FloatArray | None:
        """The transform that the paths of the first pass give."""
        paths = [self.first.decode(self.gaussians.scores(feats_TF, None)).labels for feats_TF in feats]
        return self.gaussians.transform(feats, paths)


def adapted_transcriber(run: TrainedRun, request: SearchRequest, longest_seconds: float) -> AdaptedTranscriber:
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
    name = gaussians.name
    first, last = (_options(run, system, request.changes) for system in (f"{name} unadapted", name))
    return _with_graph(gaussians, search, first, to_the_end(last, request.grammar), longest_seconds)


def _options(run: TrainedRun, system: str, given: Mapping[str, float]) -> DecodeOptions:
    known = {**scales_of(run.folder, system), **given}
    if "acoustic_scale" not in known:
        raise SettingError(
            f"--adapt: {run.folder} has no score.json with an acoustic scale tuned on dev for its system {system!r}: "
            "give --scale, such as 0.06"
        )
    settings: dict[str, Any] = dict(known)  # those of the network are of another scale
    if "max_active" in settings:
        settings["max_active"] = int(settings["max_active"])
    return replace(DecodeOptions(), **settings)


def _with_graph(
    gaussians: AdaptedGaussians, search: WordSearch, first: DecodeOptions, last: DecodeOptions, longest_seconds: float
) -> AdaptedTranscriber:
    graph = StoredGraph.of(graph_folder(search)).read()
    decoder = Decoder(graph, last)
    spans = search.spans(decoder.graph.columns)
    return AdaptedTranscriber(gaussians, Decoder(graph, narrow(first)), GraphSearch(decoder, spans), longest_seconds)
