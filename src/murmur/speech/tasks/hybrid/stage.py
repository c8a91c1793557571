"""Stages of preparation: trained Gaussian systems, and the extractor of i-vectors."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from murmur.speech.hmm.align import phone_times
from murmur.speech.hmm.fmllr import AdaptedPair, FmllrConfig, Transforms
from murmur.speech.hmm.ivector import (
    Extractor,
    InOrder,
    IvectorConfig,
    Ubm,
    load_extractor,
    load_ubm,
    save_extractor,
    save_ubm,
    train,
    train_ubm,
)
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.storage import StoredAlignments, load_alignments, save_alignments
from murmur.speech.lexicon.lexicon import SILENCE
from murmur.speech.tasks.prepared import Absent, read_or_make

log = logging.getLogger(__name__)
FORMAT = 2
Arrays = Mapping[str, np.ndarray]


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
        tids: alignments of train, {utterance: transition-ids by frame}, in a file.
        key: digest of everything that made it.
        adaptation: transforms and model of unadapted features; None for a speaker-independent stage.
    """

    name: str
    model: HmmGmm
    tids: StoredAlignments
    key: str
    adaptation: Adaptation | None = None

    @property
    def pair(self) -> AdaptedPair:
        assert self.adaptation is not None  # a speaker-independent stage has none
        return AdaptedPair(self.model, self.adaptation.unadapted)

    def silence_share(self, texts: Mapping[str, str]) -> float:
        """Silences per place that may hold one (before the first word, after each word), between 0.01 and 0.99."""
        places = sum(len(texts[name].split()) + 1 for name in self.tids)
        silences = sum(
            time.phone == SILENCE for tids_T in self.tids.values() for time in phone_times(self.model, tids_T)
        )
        return min(max(silences / places, 0.01), 0.99)


def stored_alignment(
    model: HmmGmm, path: Path, make: Callable[[], StoredAlignments], absent: Absent
) -> StoredAlignments:
    """Alignments from a file; made and written if it is missing, damaged or of another tree."""
    read = partial(load_alignments, model)
    return read_or_make(path, read, make, partial(save_alignments, model), absent, "the alignment")


@dataclass(frozen=True)
class IvectorStage:
    """Training of a background model and an extractor, each stored when it is trained.

    Both are trained on the features of the Gaussian systems before any projection: cepstra less their mean over the
    speaker, with deltas. They need no alignment, so that speech is recognised with i-vectors in one pass. The files are
    named by a digest of everything that made them.

    Attributes:
        corpus: digest of the training speech and its features.
    """

    config: IvectorConfig
    corpus: str
    cache: Path
    absent: Absent = "make"

    @property
    def key(self) -> str:
        return self._digest(asdict(self.config))

    @property
    def files(self) -> tuple[Path, Path]:
        ubm = self._digest(asdict(self.config.ubm))
        return self.cache / f"background-{ubm}.npz", self.cache / f"ivector-{self.key}.npz"

    def untrained(self) -> bool:
        """True if the extractor is missing from the cache; reads nothing."""
        return not self.files[1].is_file()

    def extractor(self, feats: Callable[[], Mapping[str, np.ndarray]], speakers: Mapping[str, str]) -> Extractor:
        """The extractor, read or trained.

        Args:
            feats: function that returns {utterance: (T, F) features} of the training speech.
            speakers: {utterance: speaker}.
        """
        (first, last), what = self.files, "the extractor of i-vectors"

        def background() -> Ubm:
            return train_ubm(InOrder(feats()), self.config.ubm, log_pass)

        def extractor() -> Extractor:
            ubm = read_or_make(first, load_ubm, background, save_ubm, self.absent, what)
            return train(feats(), speakers, self.config, ubm=ubm, progress=log_pass)

        return read_or_make(last, load_extractor, extractor, save_extractor, self.absent, what)

    def _digest(self, config: object) -> str:
        content = json.dumps([FORMAT, config, self.corpus], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def log_pass(model: str, number: int, passes: int, value: float) -> None:
    unit = "nats per frame" if model == "background model" else "nats per group of utterances"
    log.info("%s %d/%d: %.3f %s", model, number, passes, value, unit)
