"""What the network of the hybrid recipe trains on: features at all speeds, and targets from alignments."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from murmur.recipes.hybrid_decode import Scorer
from murmur.recipes.hybrid_hmm import HmmHalf, Stage, stored_alignment
from murmur.speech import hybrid
from murmur.speech.corpus import Corpus
from murmur.speech.hmm.align import align_scores
from murmur.speech.hmm.viterbi import AlignOptions
from murmur.speech.lexicon import split_known

NETWORK_SCALE = 0.3  # posteriors of a network are flatter than likelihoods of Gaussians
SMALLEST_SHARE = 0.1  # of the mean prior: rarer pdfs are taken to be as frequent as this

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Targets:
    """The pdf of each frame of aligned utterances, and ln p(pdf) over train, (pdfs,)."""

    train: Arrays
    dev: Arrays
    log_prior: Tensor

    @property
    def pdfs(self) -> int:
        """Outputs of the network."""
        return len(self.log_prior)


def make_targets(half: HmmHalf, stage: Stage) -> Targets:
    """Targets from the alignments of a Gaussian system."""
    return _targets(stage, stage.tids, half.alignment(stage, half.material.dev))


def realigned(half: HmmHalf, stage: Stage, scorers: Mapping[str, Scorer], model_digest: str) -> Targets:
    """Targets from new alignments by a network; `scorers` give its scores of "train" and "dev"."""
    found = {}
    for name in ("train", "dev"):
        part: Corpus = getattr(half.material, name)
        texts = split_known(half.lang, part.texts).texts
        key = hashlib.sha256(f"{stage.key} {part.digest()} {model_digest}".encode()).hexdigest()[:16]

        def make(texts=texts, scorer=scorers[name]) -> Arrays:
            scores = {u: scorer(u) for u in texts}
            options = AlignOptions(acoustic_scale=NETWORK_SCALE)
            return align_scores(stage.model, scores, texts, options, half.jobs).tids

        found[name] = stored_alignment(stage.model, half.cache / f"network-{key}-alignment.npz", make)
    return _targets(stage, found["train"], found["dev"])


def _targets(stage: Stage, train: Arrays, dev: Arrays) -> Targets:
    pdfs = stage.model.pdf_ids(train)
    prior = hybrid.log_prior(pdfs.values(), stage.model.num_pdfs)
    return Targets(pdfs, stage.model.pdf_ids(dev), floored(prior))


def floored(log_prior_C: Tensor) -> Tensor:
    """ln p(pdf), none below a tenth of 1 / pdfs.

    A pdf that train hardly holds (silence has states that may be skipped) would get the largest scores of all wherever
    the network is not sure, since its tiny posterior is divided by a still tinier prior.
    """
    return log_prior_C.clamp(min=math.log(SMALLEST_SHARE / len(log_prior_C)))


@dataclass(frozen=True, eq=False)
class HybridData:
    """Features and targets of train, at all speeds, and of dev, of equally many frames each."""

    feats: Arrays
    targets: Arrays
    dev_feats: Arrays
    dev_targets: Arrays

    @staticmethod
    def load(half: HmmHalf, targets: Targets) -> HybridData:
        """Read features into memory; utterances without an alignment are left out."""
        train, dev = half.material.train, half.material.dev
        at_speeds = {speed: half.network_features(train, speed) for speed in half.front.speeds}
        feats, labels = hybrid.speed_copies(at_speeds, targets.train)
        dev_feats = half.network_features(dev)
        dev_targets = {u: hybrid.fit_targets(pdfs_T, len(dev_feats[u])) for u, pdfs_T in targets.dev.items()}
        return HybridData(feats, labels, {u: dev_feats[u] for u in dev_targets}, dev_targets)
