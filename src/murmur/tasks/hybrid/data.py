"""Training data of the hybrid recipe's network: features at all speeds, and targets from alignments."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from murmur.execution.cores import cores_here
from murmur.speech.corpus.corpus import Corpus, CorpusError
from murmur.speech.features.derivatives import Columns, with_derivatives
from murmur.speech.features.frame_shards import UTTERANCES_PER_SHARD, AlignedFrames, make
from murmur.speech.features.frame_store import FORMAT, FrameStore, open_store
from murmur.speech.features.noise import NoiseSource
from murmur.speech.features.shard_statistics import Normalisation, normalisation
from murmur.speech.features.shards import ShardRows
from murmur.speech.features.speed_chunks import SpeedChunks
from murmur.speech.hmm import hybrid
from murmur.speech.hmm.align import align_scores
from murmur.speech.hmm.storage import load_alignments
from murmur.speech.hmm.viterbi import AlignOptions
from murmur.speech.lexicon.lexicon import split_known
from murmur.tasks.hybrid.config import NetworkInput
from murmur.tasks.hybrid.decode import Scorer
from murmur.tasks.hybrid.hmm import HmmHalf
from murmur.tasks.hybrid.on_the_fly import audio_of, noise_source, speed_chunks, write_normalisation
from murmur.tasks.hybrid.stage import Stage, stored_alignment
from murmur.tasks.prepared import refuse_to_make
from murmur.tasks.speaker_columns import SpeakerColumns, joined

log = logging.getLogger(__name__)
NETWORK_SCALE = 0.3  # posteriors of a network are flatter than likelihoods of Gaussians
SMALLEST_SHARE = 0.1  # of the mean prior: lower limit of the priors

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


def stored_targets(half: HmmHalf, stage: Stage, realigned_by: str | None) -> Targets:
    """Stored targets of train alone, by a Gaussian system or by the network with a digest.

    Raises:
        SettingError: the network's alignment is missing or damaged.
    """
    if realigned_by is None:
        return _targets(stage, stage.tids, {})
    path = _realignment(half, stage, half.material.train, realigned_by)
    try:
        return _targets(stage, load_alignments(stage.model, path), {})
    except (FileNotFoundError, ValueError) as error:
        refuse_to_make(f"the alignment {path.name} ({error})", half.cache)


def _realignment(half: HmmHalf, stage: Stage, part: Corpus, model_digest: str) -> Path:
    front = half.front  # the network's input decides on its scores
    seen = repr((front.bins, front.cmvn, front.normalised, front.input))
    key = hashlib.sha256(f"{stage.key} {part.digest()} {model_digest} {seen}".encode()).hexdigest()[:16]
    return half.cache / f"network-{key}-alignment.npz"


def realigned(half: HmmHalf, stage: Stage, scorers: Mapping[str, Scorer], model_digest: str) -> Targets:
    """Targets from new alignments by a network; `scorers` give its scores of "train" and "dev"."""
    found = {}
    for name in ("train", "dev"):
        part: Corpus = getattr(half.material, name)
        texts = split_known(half.lang, part.texts).texts

        def make(texts=texts, scorer=scorers[name]) -> Arrays:
            scores = {u: scorer(u) for u in texts}
            options = AlignOptions(acoustic_scale=NETWORK_SCALE)
            return align_scores(stage.model, scores, texts, options, half.jobs).tids

        found[name] = stored_alignment(stage.model, _realignment(half, stage, part, model_digest), make)
    return _targets(stage, found["train"], found["dev"])


def _targets(stage: Stage, train: Arrays, dev: Arrays) -> Targets:
    pdfs = stage.model.pdf_ids(train)
    prior = hybrid.log_prior(pdfs.values(), stage.model.num_pdfs)
    return Targets(pdfs, stage.model.pdf_ids(dev), floored(prior))


def floored(log_prior_C: Tensor) -> Tensor:
    """ln p(pdf), with a lower limit of a tenth of 1 / pdfs.

    A pdf that is rare in train (silence has states that may be skipped) would otherwise get the largest score wherever
    the network is uncertain, because its small posterior is divided by an even smaller prior.
    """
    return log_prior_C.clamp(min=math.log(SMALLEST_SHARE / len(log_prior_C)))


@dataclass(frozen=True, eq=False)
class SpeedPart:
    """A part of the training utterances at one speed, for one shard. It refers to the features, and does not hold them.

    Attributes:
        feats: spectrum, not normalised; rows of a store, or arrays. Empty for an input without.
        normal: normalisation of the spectrum; None leaves it as it is.
        delta_order: number of derivatives appended to it.
        targets: pdfs at speed 1.
        speed: playback speed of `feats`.
        columns: the parts of the input that depend on the speaker; None for an input without.
        normalised: columns that are normalised: "static" before derivatives are appended, "all" after that.
    """

    feats: ShardRows | Arrays
    normal: Normalisation | None
    delta_order: int
    targets: Arrays
    speed: float
    columns: SpeakerColumns | None = None
    normalised: Columns = "static"

    def utterances(self) -> Iterator[AlignedFrames]:
        """The copies in order."""
        for name, targets_T in self.targets.items():
            spectrum_TS = self._spectrum(name) if self.feats else None
            yield hybrid.speed_copy(name, self.speed, joined(name, spectrum_TS, self.columns), targets_T)

    def _spectrum(self, name: str) -> np.ndarray:
        pair = None if self.normal is None else self.normal.of(name)
        return with_derivatives(self.feats[name], pair, self.delta_order, self.normalised)


def speed_parts(half: HmmHalf, targets: Arrays, speed: float) -> list[SpeedPart]:
    """The training utterances that have targets, at one speed, cut into shards."""
    train, columns, processes = half.material.train, half.speaker_columns(half.material.train, speed), cores_here()
    store = half.network_store(train, speed) if half.front.input.spectrum else None
    normal = None
    if store is not None:
        normal = normalisation(store, half.front.cmvn, processes, progress=True, delta_order=half.normalised_order)
    names = [u.id for u in train.utterances if u.id in targets]
    names = [name for name in names if (store is None or name in store) and (columns is None or name in columns)]
    parts = []
    for first in range(0, len(names), UTTERANCES_PER_SHARD):
        own = names[first : first + UTTERANCES_PER_SHARD]
        rows = {} if store is None else store.rows(own)
        here = None if normal is None else normal.part(own)
        speakers, pdfs = None if columns is None else columns.part(own), {n: targets[n] for n in own}
        parts.append(SpeedPart(rows, here, half.delta_order, pdfs, speed, speakers, half.front.normalised))
    return parts


@dataclass(frozen=True, eq=False)
class HybridData:
    """Frames and targets of train, mapped from disk, and of dev, with equally many frames each.

    `versions` draws speeds for chunks of train; None if all speeds are on disk.
    """

    train: FrameStore
    dev_feats: Arrays
    dev_targets: Arrays
    versions: SpeedChunks | None = None

    @staticmethod
    def prepare(half: HmmHalf, targets: Targets) -> HybridData:
        """Make all data that is missing or damaged; utterances without an alignment are left out."""
        return HybridData._made(half, targets, noise_source(half))

    @staticmethod
    def load(half: HmmHalf, targets: Targets) -> HybridData:
        """Open the prepared data; prepare it if it is missing or a file has the wrong size."""
        noise = noise_source(half)  # its errors are not those of prepared data
        try:
            train, versions = _opened(half, targets, noise)
        except CorpusError as error:
            log.info("%s", error)
            return HybridData._made(half, targets, noise)
        return HybridData._with_dev(half, targets, train, versions)

    @staticmethod
    def _made(half: HmmHalf, targets: Targets, noise: NoiseSource | None) -> HybridData:
        front, folder = half.front, _folder(half, targets)
        if front.draws:
            audio_of(half.material.train)
        parts = [part for speed in front.stored.speeds for part in speed_parts(half, targets.train, speed)]
        make(folder, parts, front.storage, cores_here(), progress=True)
        if front.draws:
            write_normalisation(folder, {u: part.normal for part in parts for u in part.feats})
        return HybridData._with_dev(half, targets, *_opened(half, targets, noise))

    @staticmethod
    def _with_dev(half: HmmHalf, targets: Targets, train: FrameStore, versions: SpeedChunks | None) -> HybridData:
        dev_feats = half.network_features(half.material.dev)
        dev_targets = {u: hybrid.fit_targets(pdfs_T, len(dev_feats[u])) for u, pdfs_T in targets.dev.items()}
        return HybridData(train, {u: dev_feats[u] for u in dev_targets}, dev_targets, versions)


def _opened(half: HmmHalf, targets: Targets, noise: NoiseSource | None) -> tuple[FrameStore, SpeedChunks | None]:
    """The prepared frames of train, and the speeds and noise that its chunks are drawn with.

    Raises:
        CorpusError: the data is missing or damaged.
    """
    train = open_store(_folder(half, targets))
    return train, speed_chunks(half, train, noise) if half.front.draws else None


def _folder(half: HmmHalf, targets: Targets) -> Path:
    """The folder of the frames of exactly these features and targets."""
    content = hashlib.sha256(repr((FORMAT, half.front.stored, half.material.train.digest())).encode())
    if half.front.input != NetworkInput():
        stage = half.trained[-1].key if half.front.input.fmllr else ""
        content.update(f"{half.front.input} {stage}".encode())
    if half.front.normalised != "static":
        content.update(half.front.normalised.encode())
    for name, pdfs_T in targets.train.items():
        content.update(name.encode())
        content.update(np.ascontiguousarray(pdfs_T, "<i4").data)
    return half.cache / f"frames-{content.hexdigest()[:16]}"
