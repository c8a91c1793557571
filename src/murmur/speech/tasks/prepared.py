"""Prepared data of tasks: files that are read or made, estimates of the work that makes them, digests.

Seconds assume that nothing else runs on the cores that the work may use. The costs were measured on one core of an
AMD EPYC, on digits of 0.1 hours (Gaussian systems) and of 28 hours (features); actual ones may be half or twice as
large.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import soundfile

from murmur.core.counted import counted
from murmur.core.errors import READ_ONLY, SettingError
from murmur.engine.task import Unmade
from murmur.execution.workers import cores_here
from murmur.speech.corpus.corpus import Corpus, Utterance
from murmur.speech.corpus.digits import Digits
from murmur.speech.corpus.sound_file import Sound
from murmur.speech.features.analysis import Front
from murmur.speech.features.feature_store import missing_share
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.ivector import IvectorConfig

log = logging.getLogger(__name__)
Absent = Literal["make", "refuse"]
Made = TypeVar("Made")
FRAMES_PER_SECOND = 100
LOOKED_AT = 100  # utterances sampled to estimate the length of all
USUAL_SECONDS = 4.0  # of an utterance, if its length is costly to read
DIGITS_SECONDS = 1.75  # of audio per utterance of the synthesised digits
SYNTHESIS_SECONDS = 0.02  # to synthesise one
FEATURES_SECONDS = 4.0  # for an hour of speech; so are the next ones
PASS_SECONDS, GAUSSIAN_SECONDS = 1.9, 0.85e-3  # of a pass of EM, and of each additional Gaussian
ALIGNMENT_SECONDS, TREE_SECONDS, PACKING_SECONDS = 4.0, 5.0, 2.0
UBM_SECONDS = 0.01  # for an hour of speech, of a pass of EM, and of each Gaussian
UBM_DIMS = 39  # features of the background model
EXTRACTOR_SECONDS = 8e-9  # of a pass of EM, for each Gaussian, pair of values, and group of utterances
FLAC_BYTES = 20e3  # per second of audio


def refuse_to_make(what: str, cache: Path) -> NoReturn:
    """End because prepared training data is missing."""
    raise SettingError(
        f"{what}, which the run's training prepared, is not in {cache.absolute()}; a command that uses a model prepares"
        " nothing: name the cache of the training with --set task.cache=FOLDER, or make it again with murmur prepare"
    )


def read_or_make(
    path: Path,
    read: Callable[[Path], Made],
    make: Callable[[], Made],
    write: Callable[[Made, Path], Made | None],
    absent: Absent,
    what: str,
) -> Made:
    """The content of a file of the cache; made and written if it is missing or damaged.

    `write` may return the content as it lies on disk, for one that refers to its file.
    """
    try:
        return read(path)
    except (FileNotFoundError, ValueError) as error:
        if absent == "refuse":
            refuse_to_make(f"{what} {path.name} ({error})", path.parent)
        if isinstance(error, FileNotFoundError):
            log.info("%s %s is missing: making it", what, path.name)
        else:
            log.warning("%s", error)
    made = make()
    return store(path, lambda: write(made, path)) or made


def store(path: Path, write: Callable[[], Made]) -> Made | None:
    """Write a file of the cache, unless the cache is read-only: it may hold the file already."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write()
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
        log.warning("%s is not written: %s", path, error)
        return None


def digest_of(*parts: Iterable[Sequence[object]]) -> str:
    """Return sixteen hexadecimal digits that depend on the rows of each part and on their order.

    A resumed run warns if the digest of its data has changed (`murmur.engine.task.IdentifiesData`). Samples and
    features are not read: another recording of the same length under the same name and text goes unnoticed.
    """
    content = blake2b(digest_size=8)
    for part in parts:
        for row in part:
            content.update("\x1f".join(map(str, row)).encode(errors="backslashreplace") + b"\x1e")
        content.update(b"\x1d")
    return content.hexdigest()


def rows_of(corpus: Corpus, frames: Mapping[str, Sized] | None = None) -> Iterator[tuple[object, ...]]:
    """Identifier, speaker and text of utterances; with `frames`, those of utterances that have some, and how many."""
    for u in corpus.utterances:
        if frames is None:
            yield u.id, u.speaker, u.text
        elif u.id in frames:
            yield u.id, u.speaker, u.text, len(frames[u.id])


def speech_hours(corpus: Corpus) -> float:
    every = max(1, len(corpus) // LOOKED_AT)
    lengths = [length for u in corpus.utterances[::every] if (length := _seconds(u)) is not None] or [USUAL_SECONDS]
    return sum(lengths) / len(lengths) * len(corpus) / 3600


def _seconds(utterance: Utterance) -> float | None:
    audio = utterance.audio
    if audio is None or audio.command is not None:
        return None
    if audio.end_seconds is not None:
        return audio.end_seconds - audio.start_seconds
    try:
        with Sound(audio.path) as file:
            return file.frames / file.rate_hz - audio.start_seconds
    except (soundfile.SoundFileError, OSError):
        return None  # preparation will report it


def digits_to_make(cache: Path, config: Digits) -> tuple[Unmade, dict[str, float]]:
    """The synthesised digits, and the hours of each of their parts."""
    counts = {"train": config.train, "dev": config.dev, "test": config.test}
    hours = {part: count * DIGITS_SECONDS / 3600 for part, count in counts.items()}
    spoken = sum(counts.values())
    size = sum(hours.values()) * 3600 * FLAC_BYTES
    return Unmade(f"{spoken} spoken digit strings", cache, spoken * SYNTHESIS_SECONDS, size), hours


def features_to_make(corpora: Mapping[str, Corpus], front: Front, cache: Path, what: str) -> list[Unmade]:
    """Features that are missing from the cache, one line per part."""
    shares = {name: missing_share(corpus, front, cache) for name, corpus in corpora.items()}
    missing = {name: share * speech_hours(corpora[name]) for name, share in shares.items() if share}
    return features_of(missing, front.dims, cache, what) if missing else []


def features_of(hours: Mapping[str, float], dims: int, cache: Path, what: str) -> list[Unmade]:
    """Features for the given hours of each part, all still to be made."""
    size = sum(hours.values()) * 3600 * FRAMES_PER_SECOND * dims * 4
    seconds = FEATURES_SECONDS * sum(hours.values()) / cores_here()
    return [Unmade(f"{what} of {', '.join(hours)} ({sum(hours.values()):.2f} h)", cache, seconds, size)]


def systems_to_make(missing: Mapping[str, Any], hours: float, cache: Path, jobs: int) -> list[Unmade]:
    """Gaussian systems by name, with their settings, trained on the given hours."""
    found = []
    for name, config in missing.items():
        em: EmConfig = config if isinstance(config, EmConfig) else config.em
        passes = em.passes * (PASS_SECONDS + GAUSSIAN_SECONDS * em.gaussians)
        tree = 0.0 if isinstance(config, EmConfig) else TREE_SECONDS
        seconds = hours * (passes + ALIGNMENT_SECONDS * len(em.align_passes) + tree) / jobs
        found.append(Unmade(f"{name} system, {counted(em.passes, 'pass')} over {hours:.2f} h", cache, seconds, 1e6))
    return found


def extractor_to_make(config: IvectorConfig, hours: float, cache: Path) -> Unmade:
    """Background model and extractor of i-vectors, trained on the given hours."""
    gaussians = config.ubm.gaussians
    groups = hours * 3600 / USUAL_SECONDS / (config.utterances or 1)
    seconds = config.ubm.passes * gaussians * UBM_SECONDS * hours
    seconds += config.passes * gaussians * config.dims**2 * EXTRACTOR_SECONDS * groups
    size = 8.0 * gaussians * config.dims * UBM_DIMS
    return Unmade(f"i-vectors of {config.dims} values from {gaussians} Gaussians", cache, seconds, size)


def frames_to_make(hours: float, dims: int, value_bytes: int, cache: Path) -> Unmade:
    size = hours * 3600 * FRAMES_PER_SECOND * dims * value_bytes
    return Unmade(f"frames with targets ({hours:.2f} h)", cache, PACKING_SECONDS * hours / cores_here(), size)
