"""Hidden Markov models: states without emissions, as decoding graphs need them, and Gaussian mixtures.

A projection is y_t = A [x_{t-c}; ...; x_{t+c}].

Shapes: T frames, F features, S static features (the first ones), W = 2c + 1 frames in a window, D projected features, P
pdfs, I transition-ids + 1 (index 0 unused).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import kaldi_hmm_gmm as khg
import numpy as np
import torch
from numpy.typing import NDArray

from murmur.speech.features.derived import ChangedArrays
from murmur.speech.hmm.mixtures import FloatArray, Mixtures, one_thread
from murmur.speech.hmm.topology import num_states
from murmur.speech.hmm.transitions import Transitions, make_transitions
from murmur.speech.hmm.tree import IntArray, Tree
from murmur.speech.lexicon.lexicon import Lang


@dataclass(frozen=True)
class Projection:
    """A projection of windows of static features.

    Attributes:
        matrix: (D, W S) matrix A.
        context_frames: number c of frames on each side; at the edges the outermost frame repeats.
        static_dim: number S of leading static features (the window makes deltas superfluous).
    """

    matrix: FloatArray
    context_frames: int
    static_dim: int

    def __post_init__(self) -> None:
        width = (2 * self.context_frames + 1) * self.static_dim
        if self.matrix.ndim != 2 or self.matrix.shape[1] != width:
            raise ValueError(f"a matrix of shape {self.matrix.shape} cannot project windows of {width} values")

    def apply(self, feats_TF: NDArray[np.float32]) -> NDArray[np.float32]:
        """(T, D) the projected frames."""
        with one_thread(), torch.inference_mode():
            windows = torch.from_numpy(splice(feats_TF[:, : self.static_dim], self.context_frames))
            return (windows @ torch.from_numpy(self.matrix.T.astype(np.float32))).numpy()


def splice(feats_TS: NDArray[np.float32], context_frames: int) -> NDArray[np.float32]:
    """(T, W S) each frame with its neighbours, the earliest first; at the edges the outermost frame repeats."""
    frames = len(feats_TS)
    padded = np.pad(feats_TS, ((context_frames, context_frames), (0, 0)), mode="edge")
    return np.concatenate([padded[k : k + frames] for k in range(2 * context_frames + 1)], 1, dtype=np.float32)


def project(projection: Projection | None, feats_TF: NDArray[np.float32]) -> NDArray[np.float32]:
    """The projected frames; without a projection, the frames themselves as contiguous float32."""
    if projection is None:
        return np.ascontiguousarray(feats_TF, dtype=np.float32)
    return projection.apply(feats_TF)


def adapt(transform: FloatArray | None, feats_TD: NDArray[np.float32]) -> NDArray[np.float32]:
    """(T, D) W xi of all frames in float32; the frames themselves without a transform."""
    if transform is None:
        return feats_TD
    wide = transform.astype(np.float32)
    with one_thread(), torch.inference_mode():
        return torch.addmm(
            torch.from_numpy(wide[:, -1].copy()), torch.from_numpy(feats_TD), torch.from_numpy(wide[:, :-1].copy()).T
        ).numpy()


SUM_TOLERANCE = 0.01  # of the sum of probabilities in float32


@dataclass(frozen=True, eq=False)
class HmmStates:
    """The states that a hybrid network scores.

    Attributes:
        lang: phones and words of training.
        tree: tying of states to pdfs.
        log_probs: (I,) natural log probabilities by transition-id; index 0 is unused.
    """

    lang: Lang
    tree: Tree
    log_probs: NDArray[np.float32]

    @cached_property
    def transitions(self) -> Transitions:
        """The transition model; graph building needs `transitions.library` and `transitions.tree`."""
        return make_transitions(self.lang, self.tree, self.log_probs)

    @cached_property
    def tying(self) -> str:
        """A digest of phones and tree, equal for models whose transition-ids have the same meaning."""
        content = json.dumps([list(self.lang.phones), self.lang.num_silence, self.tree.to_json()])
        return hashlib.sha256(content.encode()).hexdigest()

    def check(self) -> None:
        """Check what the library does not: values from a file that are inconsistent would abort or hang it.

        Raises:
            ValueError: the tree lacks a state, or the probabilities of a state do not sum to one.
        """
        lang, roots = self.lang, self.tree.roots
        missing = [
            (p, s) for p in range(1, len(lang.phones)) for s in range(num_states(lang, p)) if (p, s) not in roots
        ]
        if missing:
            raise ValueError(f"its tree lacks states such as {missing[:3]}")
        _check_probabilities(self.transitions, self.log_probs[1:])

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: library objects are made again in another process."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def _check_probabilities(transitions: Transitions, log_probs_I: NDArray) -> None:
    """Raise ValueError unless those of a state sum to one: on a cycle with a negative cost the library never ends."""
    states = np.stack([transitions.phone_of, transitions.state_of, transitions.pdf_of])[:, 1:]
    _, state_of = np.unique(states, axis=1, return_inverse=True)
    sums = np.bincount(state_of.ravel(), np.exp(log_probs_I.astype(np.float64).clip(max=1.0)))
    if not (np.abs(sums - 1) < SUM_TOLERANCE).all():
        raise ValueError(
            f"its transition probabilities sum to {sums.min():.3g} ... {sums.max():.3g} a state, not to one"
        )


@dataclass(frozen=True, eq=False)
class HmmGmm(HmmStates):
    """A hidden Markov model whose states emit by Gaussian mixtures. Values never change: training makes new ones.

    Attributes:
        mixtures: Gaussians of the tree's pdfs.
        projection: projection applied to features first; None if the mixtures take them directly.
    """

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

    def check_ids(self, tids: Mapping[str, IntArray]) -> None:
        """Raise ValueError if an alignment holds ids that are not transition-ids of this model; name the utterance."""
        for utterance, tids_T in tids.items():
            try:
                self.transitions.arcs.check(tids_T)
            except ValueError as error:
                raise ValueError(f"utterance {utterance}: {error}") from error

    def pdf_ids(self, tids: Mapping[str, IntArray]) -> ChangedArrays:
        """The pdf of each frame of aligned utterances, found as they are taken: the targets of a network.

        Raises:
            ValueError: as `check_ids`.
        """
        self.check_ids(tids)
        return ChangedArrays(tids, partial(_pdfs, self.transitions.pdf_of))


def _pdfs(pdf_of: IntArray, _utterance: str, tids_T: IntArray) -> IntArray:
    return pdf_of[tids_T]
