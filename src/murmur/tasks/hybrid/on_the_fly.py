"""Inputs of speeds and noise on the fly, stored beside the frames: places of audio, and statistics of CMVN."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.speech.corpus.corpus import Audio, Corpus, CorpusError
from murmur.speech.corpus.file_errors import making_sense_of
from murmur.speech.features.frame_store import FrameStore
from murmur.speech.features.noise import NoiseSource, recordings_in
from murmur.speech.features.shard_statistics import Normalisation
from murmur.speech.features.shards import npy_header, write_then_rename
from murmur.speech.features.speed_chunks import SpeedChunks
from murmur.tasks.hybrid.config import FrontEnd
from murmur.tasks.hybrid.hmm import HmmHalf

log = logging.getLogger(__name__)
OWNERS, PAIRS = "cmvn-owners.npy", "cmvn-pairs.npy"
AGAIN = "delete it, and prepare again"


def check_noise(front: FrontEnd) -> None:
    """Check that the folder of noise recordings exists and holds some, without opening them.

    Raises:
        SettingError: there is no such folder.
        CorpusError: it holds no recordings.
    """
    folder = front.noise.recordings
    if not front.draws or folder is None:
        return
    if not folder.is_dir():
        raise SettingError(f"task.front.noise.recordings: there is no folder {folder}")
    if front.noise.share:
        recordings_in(folder)


def noise_source(half: HmmHalf) -> NoiseSource | None:
    """The noise that training adds, with its recordings checked by their headers; None if it adds none.

    Raises:
        CorpusError: there are no recordings, or one does not fit the speech.
        ValueError: there is no audio.
    """
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
    """Speeds and noise for chunks of a store at speed 1; holds a reference to each utterance's audio, maps the rest.

    Raises:
        CorpusError: the statistics are missing or belong to another store.
        ValueError: there is no audio.
    """
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
