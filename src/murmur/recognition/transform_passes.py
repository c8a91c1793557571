"""Transforms of the speakers of new speech, from two decoding passes with a speaker-adapted Gaussian system.

The first pass decodes unadapted features, and its paths give a transform for each speaker; the second pass decodes
adapted features, and its paths give the final transforms. A network whose input has adapted features needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from murmur.speech.decoding.decoder import DecodeOptions, Decoder
from murmur.speech.decoding.graph import DecodingGraph
from murmur.speech.decoding.graph_store import StoredGraph
from murmur.speech.hmm.speaker_transforms import Transforms, transforms_from_paths
from murmur.tasks.adapted_gaussians import AdaptedGaussians
from murmur.tasks.speaker_inputs import DecodingPasses
from murmur.tasks.word_search import WordSearch


@dataclass(frozen=True, eq=False)
class TransformPasses:
    """The passes.

    Attributes:
        gaussians: speaker-adapted Gaussian system.
        search: search with its states.
        settings: settings of the passes.
    """

    gaussians: AdaptedGaussians
    search: WordSearch
    settings: DecodingPasses

    def __call__(self, feats: Mapping[str, np.ndarray], speakers: Mapping[str, str]) -> Transforms:
        """The transform W (D, D + 1) of each speaker; speakers with too little speech are left out.

        Args:
            feats: {utterance: (T, F)} features of the Gaussian system, neither projected nor adapted.
            speakers: {utterance: speaker}.
        """
        pair, found = self.gaussians.pair, None
        for options in (self.settings.first, self.settings.second):
            known: Transforms = found or {}
            scores = ((name, pair.loglikes(x_TF, known.get(speakers[name]))) for name, x_TF in feats.items())
            paths = self._paths(scores, options, alone=len({speakers[name] for name in feats}) < 2)
            found = transforms_from_paths(
                pair, feats, paths, speakers, self.gaussians.fmllr, found, 1 if len(paths) < 2 else self.search.jobs
            )
        assert found is not None  # there are two passes
        return found

    def _paths(
        self, scores: Iterable[tuple[str, np.ndarray]], options: DecodeOptions, alone: bool
    ) -> dict[str, np.ndarray]:
        """Best path of each utterance. The speech of one speaker is decoded here, that of several in processes."""
        if alone:
            decoder = Decoder(self._graph, options)
            return {name: decoder.decode(scores_TP).labels for name, scores_TP in scores}
        return {name: found.labels for name, found in self.search.decode(scores, options).hypotheses.items()}

    @cached_property
    def _graph(self) -> DecodingGraph:
        return StoredGraph.of(self.search.folder).read()
