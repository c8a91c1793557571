"""Features on disk: memory-mapped float32 shards with checksums, made once, in several processes, resumable.

A store is a folder with `00000.npy` (all frames of a shard's utterances, one after the other), `00000.json` (the
beginning of each, the problems of those left out, the SHA-256 of the array), and so on. Every file is written under
another name and then renamed, the JSON after its array; a shard without JSON or with another checksum is made again.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from murmur.core.counted import counted
from murmur.execution.processes import in_processes, with_bar
from murmur.speech.corpus.corpus import Corpus, CorpusError, Problem, Utterance, losses, tell_losses
from murmur.speech.corpus.file_errors import making_sense_of, naming, read_object
from murmur.speech.features.analysis import Front, digest, features_of

log = logging.getLogger(__name__)
UTTERANCES_PER_SHARD = 256
Stamp = tuple[int, int]


@dataclass(frozen=True)
class ShardRows(Mapping[str, np.ndarray]):
    """{utterance: feats_TF} of a store, mapped from disk on access; pickled as names and places.

    Attributes:
        folder: folder of the store.
        places: shard, first row in its array, and number of frames of each utterance.
    """

    folder: Path
    places: Mapping[str, tuple[int, int, int]]

    def __getitem__(self, utterance: str) -> np.ndarray:
        shard, first, frames = self.places[utterance]
        return self._array(shard)[first : first + frames]

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __reduce__(self) -> tuple[type[ShardRows], tuple[Path, Mapping[str, tuple[int, int, int]]]]:
        """Recipe for pickling: another process maps the arrays itself."""
        return ShardRows, (self.folder, self.places)

    @cached_property
    def _maps(self) -> dict[int, np.ndarray]:
        return {}

    def _array(self, shard: int) -> np.ndarray:
        if shard not in self._maps:
            path = self.folder / f"{shard:05}.npy"
            with making_sense_of(path, "delete it, and prepare again"):
                self._maps[shard] = np.load(path, mmap_mode="r", allow_pickle=False)
        return self._maps[shard]


@dataclass(frozen=True)
class FeatureStore(Mapping[str, np.ndarray]):
    """{utterance: feats_TF}, read from disk on access, with their corpus (without the utterances left out)."""

    folder: Path
    corpus: Corpus
    front: Front

    def __getitem__(self, utterance: str) -> np.ndarray:
        return self._rows[utterance]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def frames(self, utterance: str) -> int:
        """Number of frames of an utterance, without reading them."""
        return self._rows.places[utterance][2]

    def rows(self, utterances: Iterable[str]) -> ShardRows:
        """Some utterances in a form that is small to pickle, for processes that prepare parts."""
        return ShardRows(self.folder, {name: self._rows.places[name] for name in utterances})

    @property
    def hours(self) -> float:
        """Hours of speech."""
        return sum(n for _, _, n in self._rows.places.values()) * self.front.frame_shift_seconds / 3600

    def summary(self) -> str:
        """Hours, utterances, speakers, and a line about utterances left out."""
        speakers = len(set(self.corpus.speakers.values()))
        lines = [
            f"{self.hours:.3f} h, {counted(len(self), 'utterance')}, {counted(speakers, 'speaker')}, "
            f"{len(self.corpus.problems)} skipped"
        ]
        return "\n".join(lines + ([losses(self.corpus.problems, len(self))] if self.corpus.problems else []))

    @cached_property
    def _rows(self) -> ShardRows:
        places: dict[str, tuple[int, int, int]] = {}
        for shard, path in enumerate(sorted(self.folder.glob("[0-9]*.json"))):
            first = 0
            for name, frames in read_index(path).frames:
                places[name] = (shard, first, frames)
                first += frames
        missing = [u.id for u in self.corpus.utterances if u.id not in places]
        if missing:
            raise CorpusError(f"{self.folder} has no features of {missing[:3]}: delete it, and prepare again")
        return ShardRows(self.folder, {u.id: places[u.id] for u in self.corpus.utterances})


@dataclass(frozen=True)
class Index:
    """Contents of a shard's JSON: its utterances with their frames, problems, and the array's checksum."""

    frames: tuple[tuple[str, int], ...]
    problems: tuple[Problem, ...]
    sha256: str


def read_index(path: Path) -> Index:
    """The JSON of a shard.

    Raises:
        CorpusError: the content has another form.
    """
    again = "delete it, and prepare again"
    with making_sense_of(path, again):
        found = read_object(path, again)
        frames = tuple((str(name), int(count)) for name, count in found["frames"])
        if any(count < 0 for _, count in frames):
            raise CorpusError(f"{path} has a negative number of frames: {again}")
        problems = tuple(Problem(**{k: str(v) for k, v in problem.items()}) for problem in found["problems"])
        return Index(frames, problems, str(found["sha256"]))


def prepare(corpus: Corpus, front: Front, cache: Path, processes: int = 1, progress: bool = False) -> FeatureStore:
    """The features of a corpus, computed or found in `cache`/<digest of corpus and front>.

    Utterances whose audio cannot be used are left out and named in `store.corpus.problems`. They are tried again in
    every call, since the reason may have passed, such as a program that was not installed.

    Args:
        corpus: corpus to analyse.
        front: analysis.
        cache: folder of stores; one store per corpus and front.
        processes: 1 works in this process; otherwise up to that many start if the work is worth it (`spawn`: scripts
            need `if __name__ == "__main__"`).
        progress: show a progress bar.

    Raises:
        CorpusError: more than 1 % of the utterances cannot be used.
    """
    folder = store_folder(corpus, front, cache)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [corpus.utterances[i : i + UTTERANCES_PER_SHARD] for i in range(0, len(corpus), UTTERANCES_PER_SHARD)]
    seen = [stamp(folder, n) for n in range(len(parts))]
    missing = [n for n, part in enumerate(parts) if not shard_is_whole(folder, n) or _is_mended(folder, n, part, front)]
    makes = {n: partial(make_shard, folder, n, parts[n], front) for n in missing}
    jobs = [partial(make_unless_made, folder, n, seen[n], shard_is_whole, make) for n, make in makes.items()]
    for _ in with_bar(in_processes(jobs, processes), "features", len(jobs), progress):
        pass
    problems = [p for path in sorted(folder.glob("[0-9]*.json")) for p in read_index(path).problems]
    kept = corpus.without(problems)
    if missing:
        tell_losses(f"features in {folder.name}", len(kept), problems)
    return FeatureStore(folder, kept, front)


def is_prepared(corpus: Corpus, front: Front, cache: Path) -> bool:
    """True if the features of a corpus are in `cache`; their checksums are not verified."""
    folder = store_folder(corpus, front, cache)
    shards = range(-(-len(corpus) // UTTERANCES_PER_SHARD))
    return all((folder / f"{n:05}.{kind}").is_file() for n in shards for kind in ("npy", "json"))


def store_folder(corpus: Corpus, front: Front, cache: Path) -> Path:
    """The folder in `cache` for the features of this corpus and analysis, which need not exist."""
    name = hashlib.sha256((corpus.digest() + digest(front)).encode()).hexdigest()[:16]
    return Path(cache) / f"features-{name}"


def missing_share(corpus: Corpus, front: Front, cache: Path) -> float:
    """The share of the shards of a store that are missing, 0 to 1; their content is not checked."""
    folder = store_folder(corpus, front, cache)
    count = -(-len(corpus) // UTTERANCES_PER_SHARD)
    missing = [n for n in range(count) if not (folder / f"{n:05}.json").is_file()]
    return len(missing) / max(1, count)


def shard_is_whole(folder: Path, number: int) -> bool:
    """True if a shard's array exists and has the checksum that its JSON states."""
    array, index = folder / f"{number:05}.npy", folder / f"{number:05}.json"
    if not array.is_file() or not index.is_file():
        return False
    try:
        if _is_of(read_index(index), array):
            return True
    except CorpusError as error:
        log.warning("%s; the shard is made again", error)
        return False
    log.warning("%s is damaged: its checksum is not the one in %s; the shard is made again", array, index.name)
    return False


def _is_of(index: Index, array: Path) -> bool:
    """True if an array has the checksum, and as many rows as there are frames."""
    if index.sha256 != sha256_of(array):
        return False
    with making_sense_of(array, "prepare again"):
        rows = np.load(array, mmap_mode="r", allow_pickle=False).shape[0]
        return bool(rows == sum(count for _, count in index.frames))


def _is_mended(folder: Path, number: int, utterances: Sequence[Utterance], front: Front) -> bool:
    """True if an utterance that was left out of a shard has features now."""
    left_out = {problem.utterance for problem in read_index(folder / f"{number:05}.json").problems}
    for utterance in utterances:
        if utterance.id in left_out:
            try:
                features_of(utterance, front)
            except CorpusError:
                continue
            log.info("%s can be used now; its shard of features is made again", utterance.id)
            return True
    return False


def stamp(folder: Path, number: int) -> Stamp | None:
    """A mark of a shard's JSON that changes when it is written again, even with the same content; None without one."""
    try:
        found = (folder / f"{number:05}.json").stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def make_unless_made(
    folder: Path,
    number: int,
    seen: Stamp | None,
    is_whole: Callable[[Path, int], bool],
    make: Callable[[], None],
) -> None:
    """Write a shard by `make`, unless another command has made it since its JSON had the stamp `seen`."""
    if stamp(folder, number) in (None, seen) or not is_whole(folder, number):
        make()


def make_shard(folder: Path, number: int, utterances: Sequence[Utterance], front: Front) -> None:
    """Write one shard: its array first, then its JSON, which marks it as complete."""
    frames, problems, arrays = [], [], []
    for utterance in utterances:
        try:
            feats_TF = features_of(utterance, front)
        except CorpusError as error:
            problems.append(asdict(Problem(utterance.id, _place(utterance), str(error))))
            continue
        frames.append((utterance.id, len(feats_TF)))
        arrays.append(feats_TF)
    array = folder / f"{number:05}.npy"
    _, checksum = write_then_rename(array, _npy_parts(arrays, front.dims))
    content = json.dumps({"frames": frames, "problems": problems, "sha256": checksum}, ensure_ascii=False)
    write_then_rename(array.with_suffix(".json"), [content.encode()])


def _place(utterance: Utterance) -> str:
    source = utterance.audio or utterance.features
    return str(source.path) if source else "no source"


def _npy_parts(arrays: Sequence[np.ndarray], dims: int) -> Iterator[bytes | memoryview]:
    """An .npy file of all arrays one below the other, in pieces, to avoid joining them in memory."""
    yield npy_header("<f4", (sum(len(feats_TF) for feats_TF in arrays), dims))
    for feats_TF in arrays:
        yield np.ascontiguousarray(feats_TF, "<f4").data


def npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    """The header of an .npy file of a little-endian array in C order."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    return header.getvalue()


def write_then_rename(path: Path, parts: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a file under another name and rename it when complete; return its bytes and its SHA-256."""
    checksum, size = hashlib.sha256(), 0
    # A unique name, since several learners may prepare the same store at the same time.
    # Not by tempfile, whose files no other user may read.
    beside = path.with_name(f"{path.name}{secrets.token_hex(4)}.unfinished")
    try:
        with naming(path), beside.open("xb") as file:
            for part in parts:
                checksum.update(part)
                size += len(part) if isinstance(part, bytes) else part.nbytes
                file.write(part)
        beside.replace(path)
    except BaseException:
        with suppress(OSError):  # the error that is raised says more
            beside.unlink(missing_ok=True)
        raise
    return size, checksum.hexdigest()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
