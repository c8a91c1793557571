"""The model: language, state tying, transition probabilities, Gaussian mixtures and an optional projection.

Shapes: T frames, F features, P pdfs, I transition-ids + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import kaldi_hmm_gmm as khg
import numpy as np
from numpy.typing import NDArray

from murmur.speech.hmm.mixtures import Mixtures
from murmur.speech.hmm.phone_arcs import IntArray
from murmur.speech.hmm.projection import Projection, project
from murmur.speech.hmm.states import HmmStates
from murmur.speech.hmm.transitions import Transitions
from murmur.speech.hmm.tree import Tree
from murmur.speech.lexicon.lexicon import Lang


@dataclass(frozen=True)
class HmmGmm:
    """A hidden Markov model whose states emit by Gaussian mixtures. Values never change: training makes new ones.

    Attributes:
        lang: phones and words.
        tree: tying of states to pdfs.
        log_probs: (I,) natural log probabilities by transition-id; index 0 is unused.
        mixtures: Gaussians of the tree's pdfs.
        projection: projection applied to features first; None if the mixtures take them directly.
    """

    lang: Lang
    tree: Tree
    log_probs: NDArray[np.float32]
    mixtures: Mixtures
    projection: Projection | None = None

    def __post_init__(self) -> None:
        if self.mixtures.num_pdfs != self.tree.num_pdfs:
            raise ValueError(f"{self.mixtures.num_pdfs} mixtures for the {self.tree.num_pdfs} pdfs of the tree")

    @property
    def num_pdfs(self) -> int:
        """P."""
        return self.tree.num_pdfs

    @cached_property
    def states(self) -> HmmStates:
        """The model without its Gaussians."""
        return HmmStates(self.lang, self.tree, self.log_probs)

    @property
    def transitions(self) -> Transitions:
        """The transition model."""
        return self.states.transitions

    @cached_property
    def library_mixtures(self) -> khg.AmDiagGmm:
        """The mixtures as the library's object; do not change it."""
        return self.mixtures.to_library()

    def features(self, feats_TF: NDArray[np.float32]) -> NDArray[np.float32]:
        """Input of the mixtures: the projected frames, or the frames themselves."""
        return project(self.projection, feats_TF)

    def loglikes(self, feats_TF: NDArray[np.float32]) -> NDArray[np.float32]:
        """(T, P) natural log-likelihoods log p(x_t | pdf), unscaled.

        Raises:
            ValueError: wrong number of features, or values that are not finite.
        """
        return self.mixtures.loglikes(self.features(feats_TF))

    def pdf_ids(self, tids: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """The pdf of each frame of aligned utterances: the targets of a network.

        Raises:
            ValueError: an alignment holds ids that are not transition-ids of this model; names the utterance.
        """
        out = {}
        for utterance, tids_T in tids.items():
            try:
                self.transitions.arcs.check(tids_T)
            except ValueError as error:
                raise ValueError(f"utterance {utterance}: {error}") from error
            out[utterance] = self.transitions.pdf_of[tids_T]
        return out

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: library objects are made again in another process."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}
