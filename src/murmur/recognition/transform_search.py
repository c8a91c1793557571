"""Transforms of the speakers of new speech, from a decoding pass with a speaker-adapted Gaussian system.

The pass decodes unadapted features, and its paths give a transform for each speaker. A network whose input has adapted
features needs them.
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
from murmur.tasks.speaker_inputs import FirstPass
from murmur.tasks.word_search import WordSearch


@dataclass(frozen=True, eq=False)
class TransformSearch:
    """The search for the paths.

    Attributes:
        gaussians: speaker-adapted Gaussian system.
        search: search with its states.
        settings: settings of the pass.
    """

    gaussians: AdaptedGaussians
    search: WordSearch
    settings: FirstPass

    def __call__(self, feats: Mapping[str, np.ndarray], speakers: Mapping[str, str]) -> Transforms:
        """The transform W (D, D + 1) of each speaker; speakers with too little speech are left out.

        Args:
            feats: {utterance: (T, F)} features of the Gaussian system, neither projected nor adapted.
            speakers: {utterance: speaker}.
        """
        pair, alone = self.gaussians.pair, len({speakers[name] for name in feats}) < 2
        scores = ((name, pair.loglikes(x_TF, None)) for name, x_TF in feats.items())
        paths = self._paths(scores, self.settings.options, alone)
        jobs = 1 if len(paths) < 2 else self.search.jobs
        return transforms_from_paths(pair, feats, paths, speakers, self.gaussians.fmllr, jobs)

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
