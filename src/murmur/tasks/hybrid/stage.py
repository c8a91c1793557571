"""A trained Gaussian system: its model, its alignments of train, and what adapts it to speakers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.phone_times import phone_times
from murmur.speech.hmm.speaker_transforms import AdaptedPair, FmllrConfig, Transforms
from murmur.speech.hmm.storage import load_alignments, save_alignments
from murmur.speech.lexicon.lexicon import SILENCE

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Adaptation:
    """Additional parts of a speaker-adapted stage.

    Attributes:
        unadapted: model of unadapted features, with the same states and Gaussians.
        transforms: transforms of the training speakers, {speaker: W (D, D + 1)}.
        decoding: settings for the estimation of transforms from a first decoding pass.
    """

    unadapted: HmmGmm
    transforms: Transforms
    decoding: FmllrConfig


@dataclass(frozen=True)
class Stage:
    """A trained Gaussian system.

    Attributes:
        name: its name.
        model: the model.
        tids: alignments of train, {utterance: transition-ids by frame}.
        key: digest of everything that made it.
        adaptation: transforms and model of unadapted features; None for a speaker-independent stage.
    """

    name: str
    model: HmmGmm
    tids: Mapping[str, np.ndarray]
    key: str
    adaptation: Adaptation | None = None

    @property
    def pair(self) -> AdaptedPair:
        """The models of adapted and of unadapted features."""
        assert self.adaptation is not None  # a speaker-independent stage has none
        return AdaptedPair(self.model, self.adaptation.unadapted)

    def silence_share(self, texts: Mapping[str, str]) -> float:
        """Silences per place that may hold one (before the first word, after each word), between 0.01 and 0.99."""
        places = sum(len(texts[name].split()) + 1 for name in self.tids)
        silences = sum(
            time.phone == SILENCE for tids_T in self.tids.values() for time in phone_times(self.model, tids_T)
        )
        return min(max(silences / places, 0.01), 0.99)


def stored_alignment(model: HmmGmm, path: Path, make: Callable[[], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Alignments from a file; made and written if it is missing, damaged or of another tree."""
    try:
        return load_alignments(model, path)
    except FileNotFoundError:
        log.info("alignment %s: searching", path.name)
    except ValueError as error:
        log.warning("%s", error)
    tids = dict(make())
    path.parent.mkdir(parents=True, exist_ok=True)
    save_alignments(model, tids, path)
    return tids
