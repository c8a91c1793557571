"""Training data of the network: features at all speeds, targets from alignments, inputs of changes on the fly."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.execution.executors import whole_host
from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError
from murmur.speech.corpus.file_content import making_sense_of
from murmur.speech.features.by_utterance import part_of
from murmur.speech.features.chunks import AlignedFrames, fit_targets, speed_copy
from murmur.speech.features.cmvn import Columns, with_derivatives
from murmur.speech.features.feature_store import Normalisation, ShardRows, normalisation
from murmur.speech.features.shards import (
    FORMAT,
    UTTERANCES_PER_SHARD,
    FrameStore,
    make,
    npy_header,
    open_store,
    write_then_rename,
)
from murmur.speech.features.speed_and_noise import NoiseSource, SpeedChunks, recordings_in
from murmur.speech.hmm import frame_classifier
from murmur.speech.hmm.align import align_scores
from murmur.speech.hmm.passes import AlignOptions
from murmur.speech.hmm.storage import StoredAlignments
from murmur.speech.lexicon.lexicon import split_known
from murmur.speech.tasks.hybrid.config import FrontEnd
from murmur.speech.tasks.hybrid.hmm import HmmHalf
from murmur.speech.tasks.hybrid.stage import Stage, stored_alignment
from murmur.speech.tasks.speaker_inputs import SpeakerColumns, joined

log = logging.getLogger(__name__)
OWNERS, PAIRS = "cmvn-owners.npy", "cmvn-pairs.npy"
AGAIN = "delete it, and prepare again"
NETWORK_SCALE = 0.3  # posteriors of a network are flatter than likelihoods of Gaussians
SMALLEST_SHARE = 0.1  # of the mean prior: lower limit of the priors
Arrays = Mapping[str, np.ndarray]


def check_noise(front: FrontEnd) -> None:
    """Check that the folder of noise recordings exists and holds some, without opening them."""
    folder = front.noise.recordings
    if not front.draws or folder is None:
        return
    if not folder.is_dir():
        raise SettingError(f"task.front.noise.recordings: there is no folder {folder}")
    if front.noise.share:
        recordings_in(folder)


def noise_source(half: HmmHalf) -> NoiseSource | None:
    """The noise that training adds, with its recordings checked by their headers; None if it adds none."""
    front, train = half.front, half.material.train
    if not front.draws or not front.noise.share:
        return None
    audio_of(train)
    found = NoiseSource(front.noise, half.log_mel(train).rate_hz)
    if front.noise.recordings is not None:
        _ = found.files
    return found


def audio_of(corpus: Corpus) -> dict[str, Audio]:
    """The place of each utterance's audio.

    Raises:
        ValueError: an utterance has no audio, or gets it from a command.
    """
    found = {}
    for utterance in corpus.utterances:
        if utterance.audio is None or utterance.audio.command is not None:
            what = "brings only features" if utterance.audio is None else "gets its audio from a command"
            raise ValueError(
                f"task.front.perturb=on_the_fly reads audio files in training, but utterance {utterance.id} {what}: "
                "extract the audio to files, or set task.front.perturb=stored"
            )
        found[utterance.id] = utterance.audio
    return found


def write_normalisation(folder: Path, normal: Mapping[str, Normalisation | None]) -> None:
    """Write the mean and deviation that normalise each utterance, beside the frames and in their order.

    cmvn-owners.npy holds (utterances,) int32, cmvn-pairs.npy (owners, 2, F) float32; if features are not normalised,
    no file is written.
    """
    numbers: dict[str, int] = {}
    owners: list[int] = []
    pairs: list[np.ndarray] = []
    for utterance, found in normal.items():
        if found is None:
            return
        group = found.group[utterance]
        if group not in numbers:
            numbers[group] = len(pairs)
            pairs.append(np.stack(found.pairs[group]))
        owners.append(numbers[group])
    for name, array in ((OWNERS, np.array(owners, "<i4")), (PAIRS, np.stack(pairs).astype("<f4"))):
        pieces, path = [npy_header(array.dtype.str, array.shape), array.tobytes()], folder / name
        if not path.is_file() or path.read_bytes() != b"".join(pieces):  # a complete cache may be read-only
            write_then_rename(path, pieces)


def speed_chunks(half: HmmHalf, train: FrameStore, noise: NoiseSource | None) -> SpeedChunks:
    """Speeds and noise for chunks of a store at speed 1; holds a reference to each utterance's audio, maps the rest."""
    corpus = half.material.train
    audio = audio_of(corpus)
    owners, pairs = np.empty(0, np.int32), np.empty((0, 2, train.dims), np.float32)
    if half.front.cmvn != "none":
        owners, pairs = _mapped(train.folder / OWNERS), _mapped(train.folder / PAIRS)
        whole = owners.shape == (len(train),) and pairs.shape[1:] == (2, train.dims)
        if not whole or owners.min() < 0 or owners.max() >= len(pairs):
            raise CorpusError(
                f"{train.folder / OWNERS} does not match {counted(len(train), 'utterance')}: prepare again"
            )
    sources = tuple(audio[name] for name in train.names)
    front = half.log_mel(corpus)
    if noise is not None and noise.noise.recordings is not None:
        log.info("noise from %s in %s", counted(len(noise.files), "recording"), noise.noise.recordings)
    return SpeedChunks(train, train.lengths, sources, front, half.front.speeds, owners, pairs, noise)


def _mapped(path: Path) -> np.ndarray:
    if not path.is_file():
        raise CorpusError(f"{path} is missing: prepare again")
    with making_sense_of(path, AGAIN):
        found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


@dataclass(frozen=True, eq=False)
class Targets:
    """The pdf of each frame of aligned utterances, found as they are taken, and ln p(pdf) over train, (pdfs,)."""

    train: Arrays
    dev: Arrays
    log_prior: Tensor

    @property
    def pdfs(self) -> int:
        return len(self.log_prior)


def make_targets(half: HmmHalf, stage: Stage) -> Targets:
    """Targets of train and dev; of train alone where nothing may be made, for a model whose prior is needed."""
    dev = {} if half.absent == "refuse" else half.alignment(stage, half.material.dev)
    return _targets(stage, stage.tids, dev)


def realigned(half: HmmHalf, stage: Stage, scores_of: Callable[[str], Arrays], model_digest: str) -> Targets:
    """Targets from new alignments by a network; `scores_of` gives its scores of "train" or "dev" as they are taken.

    Where nothing may be made, those of train alone.
    """
    front = half.front  # the network's input decides on its scores
    seen = repr((front.bins, front.cmvn, front.normalised, front.input))
    found: dict[str, Arrays] = {"dev": {}}
    for name in ("train",) if half.absent == "refuse" else ("train", "dev"):
        part: Corpus = getattr(half.material, name)
        texts = split_known(half.lang, part.texts)[0]

        def make(name=name, texts=texts) -> StoredAlignments:
            scores, options = part_of(scores_of(name), list(texts)), AlignOptions(acoustic_scale=NETWORK_SCALE)
            return align_scores(stage.model, scores, texts, options, half.jobs)

        key = hashlib.sha256(f"{stage.key} {part.digest()} {model_digest} {seen}".encode()).hexdigest()[:16]
        path = half.cache / f"network-{key}-alignment.npz"
        found[name] = stored_alignment(stage.model, path, make, half.absent)
    return _targets(stage, found["train"], found["dev"])


def _targets(stage: Stage, train: Arrays, dev: Arrays) -> Targets:
    pdfs = stage.model.pdf_ids(train)
    prior = frame_classifier.log_prior(pdfs.values(), stage.model.num_pdfs)
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
        targets: pdfs at speed 1, in a file.
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
        for name, targets_T in self.targets.items():
            spectrum_TS = self._spectrum(name) if self.feats else None
            yield speed_copy(name, self.speed, joined(name, spectrum_TS, self.columns), targets_T)

    def _spectrum(self, name: str) -> np.ndarray:
        pair = None if self.normal is None else self.normal.of(name)
        return with_derivatives(self.feats[name], pair, self.delta_order, self.normalised)


def speed_parts(half: HmmHalf, targets: Arrays, speed: float) -> list[SpeedPart]:
    """The training utterances that have targets, at one speed, cut into shards."""
    train, columns, processes = (
        half.material.train,
        half.speaker_columns(half.material.train, speed),
        whole_host(half.jobs),
    )
    store = half.network_store(train, speed) if half.front.input.spectrum else None
    normal = None
    if store is not None:
        normal = normalisation(store, half.front.cmvn, processes, progress=True, delta_order=half.normalised_order)
    names = [u.id for u in train.utterances if u.id in targets]
    names = [name for name in names if (store is None or name in store) and (columns is None or name in columns)]
    parts = []
    for first in range(0, len(names), UTTERANCES_PER_SHARD):
        own = names[first : first + UTTERANCES_PER_SHARD]
        rows = {} if store is None else store.part(own)
        here = None if normal is None else normal.part(own)
        speakers, pdfs = None if columns is None else columns.part(own), part_of(targets, own)
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
        noise = noise_source(half)
        _make_frames(half, targets)
        return HybridData._opened(half, targets, noise)

    @staticmethod
    def load(half: HmmHalf, targets: Targets) -> HybridData:
        """Open the prepared data; prepare it if it is missing or a file has the wrong size."""
        noise = noise_source(half)  # its errors are not those of prepared data
        try:
            return HybridData._opened(half, targets, noise)
        except CorpusError as error:
            log.info("%s", error)
        _make_frames(half, targets)
        return HybridData._opened(half, targets, noise)

    @staticmethod
    def _opened(half: HmmHalf, targets: Targets, noise: NoiseSource | None) -> HybridData:
        train = open_store(_folder(half, targets))
        versions = speed_chunks(half, train, noise) if half.front.draws else None
        dev_feats = half.network_features(half.material.dev)
        dev_targets = {u: fit_targets(pdfs_T, len(dev_feats[u])) for u, pdfs_T in targets.dev.items()}
        return HybridData(train, {u: dev_feats[u] for u in dev_targets}, dev_targets, versions)


def _make_frames(half: HmmHalf, targets: Targets) -> None:
    front, folder = half.front, _folder(half, targets)
    if front.draws:
        audio_of(half.material.train)
    parts = [part for speed in front.stored.speeds for part in speed_parts(half, targets.train, speed)]
    make(folder, parts, front.storage, whole_host(half.jobs), progress=True)
    if front.draws:
        write_normalisation(folder, {u: part.normal for part in parts for u in part.feats})


def _folder(half: HmmHalf, targets: Targets) -> Path:
    """The folder of the frames of exactly these features and targets."""
    content = hashlib.sha256(repr((FORMAT, half.front.stored, half.material.train.digest())).encode())
    if half.front.input.fmllr:
        content.update(half.trained[-1].key.encode())
    for name, pdfs_T in targets.train.items():
        content.update(name.encode())
        content.update(np.ascontiguousarray(pdfs_T, "<i4").data)
    return half.cache / f"frames-{content.hexdigest()[:16]}"
