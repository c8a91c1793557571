"""Scores of several networks with the same outputs, averaged: the mean of their log posteriors.

    s(t, c) = 1/M sum_m [ln p_m(c | x_t) - ln p_m(c)]

Up to a constant per frame, which no search sees, this is ln of the normalised geometric mean of the posteriors, less
the mean log prior. Networks without a prior (CTC) have log posteriors alone.

Shapes: U output frames, C columns of the networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from murmur.core.errors import SettingError
from murmur.speech.corpus.corpus import Corpus
from murmur.tasks.acoustic_model import AcousticModel
from murmur.tasks.speaker_inputs import Estimate

Features = Sequence[Mapping[str, np.ndarray]]  # of each model: {utterance: feats_TF}


@dataclass(frozen=True, eq=False)
class MeanScores:
    """Mean scores of one or more models.

    Attributes:
        models: Acoustic models with their networks; at least one.
        estimates: Function of each model that estimates transforms of speakers, None for models that need none; empty
            if none needs one.
    """

    models: tuple[tuple[AcousticModel, nn.Module], ...]
    estimates: tuple[Estimate | None, ...] = ()

    def features(self, corpus: Corpus, cache: Path) -> Features:
        """Inputs of the networks for a corpus; analyses are stored in `cache`.

        Raises:
            CorpusError: audio is missing, damaged or at another rate, or there are no features of this size.
        """
        estimates = self.estimates or (None,) * len(self.models)
        pairs = zip(self.models, estimates, strict=True)
        return [acoustic.features(corpus, cache, estimate) for (acoustic, _), estimate in pairs]

    def all_scores(self, feats: Features) -> Iterator[tuple[str, np.ndarray]]:
        """Pairs of utterance and mean scores_UC, computed as they are taken.

        Raises:
            SettingError: the models have scores of other shapes for an utterance, or one has no features of it.
        """
        (first, network), *others = self.models
        for name, own_UC in first.all_scores(network, feats[0]):
            rows = [own_UC]
            for (acoustic, other), theirs in zip(others, feats[1:], strict=True):
                if name not in theirs:
                    raise SettingError(
                        f"--with: {name} has features for one model and none for another: decode it with each alone"
                    )
                rows.append(acoustic.scores(other, theirs[name]))
                if rows[-1].shape != own_UC.shape:
                    raise SettingError(
                        f"--with: {name} has scores of shapes {own_UC.shape} and {rows[-1].shape} (frames, outputs):"
                        " models that decode together need equal frames"
                    )
            yield name, np.stack(rows).mean(0, dtype=np.float32) if others else own_UC
