"""Protocol of tasks whose Gaussian systems align their utterances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from murmur.speech.corpus.corpus import Corpus
from murmur.tasks.hybrid.stage import Stage


@runtime_checkable
class Aligns(Protocol):
    """Optional addition to `Task`: alignments by Gaussian systems."""

    def system_names(self) -> Sequence[str]:
        """Names of the systems, in the order of training; trains and reads nothing."""

    def systems(self) -> Sequence[Stage]:
        """The systems, trained if they are not stored yet."""

    def aligned(self, system: Stage, part: str) -> Mapping[str, np.ndarray]:
        """Alignments of "train", "dev" or "test", {utterance: transition-ids (T,)}."""

    def utterances(self, part: str) -> Corpus:
        """Utterances of "train", "dev" or "test"."""
