"""Stores of frames: memory-mapped shards with checksums, made once, in several processes, resumable.

    manifest.json        storage, columns, every shard's files with their sizes and SHA-256
    00000.feats.npy      frames of the shard's utterances, one after the other, (frames, F)
    00000.scales.npy     uint8 only: least value and step of every column of every utterance, (utterances, 2, F)
    00000.targets.npy    stores with targets only: one per frame, (frames,)
    00000.lengths.npy    frames of each utterance, (utterances,)
    00000.names.txt      their names, one per line
    00000.json           the shard's entry in the manifest; written last, so that a shard without it is incomplete

The lengths and their running sum are held in memory, 12 bytes per utterance. Complete shards are kept and the others
are made: a killed preparation continues, and damage costs only the damaged shard.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import mmap
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from murmur.core.whole_files import replacing
from murmur.execution.executors import Jobs
from murmur.execution.processes import in_processes, with_bar
from murmur.speech.corpus.corpus import CorpusError, Problem, check_losses
from murmur.speech.corpus.file_content import making_sense_of, read_object
from murmur.speech.corpus.remote import Mark, RemotePath, bytes_of, is_remote, location, marks_in, publish
from murmur.speech.features.chunks import AlignedFrames, check_lengths, copy_with_edges
from murmur.speech.features.staging import THREADS, Staging, fetched

log = logging.getLogger(__name__)
FORMAT = 1
AGAIN = "prepare the corpus again"
UTTERANCES_PER_SHARD = 1024
LEVELS = 255  # steps between the least and the greatest value of a column
MOST_COLUMNS = 1 << 20
MANIFEST = "manifest.json"
TRIES = 3  # to map a shard that was staged
Storage = Literal["float32", "float16", "uint8"]


@dataclass(frozen=True, eq=False)
class FrameStore:
    """Frames on disk, opened by `open_store`: `Frames` for a `ChunkTable` if they have targets.

    Attributes:
        folder: folder of the store, local or remote.
        manifest: content of manifest.json.
        lengths: number of frames of each utterance, (U,) int32.
        staging: local copies of the shards of a remote store; None for a local one.
    """

    folder: Path
    manifest: Mapping[str, Any]
    lengths: npt.NDArray[np.int32]
    staging: Staging | None = None

    @property
    def dims(self) -> int:
        """Values per frame."""
        return int(self.manifest["columns"])

    @property
    def storage(self) -> Storage:
        """The type of stored values."""
        found: Storage = self.manifest["storage"]
        return found

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The parts left out when the store was made, with reasons."""
        return tuple(Problem(**problem) for shard in self.manifest["shards"] for problem in shard["problems"])

    def __len__(self) -> int:
        return len(self.lengths)

    def __reduce__(self) -> tuple[Callable[..., FrameStore], tuple[Path, Staging | None]]:
        return open_store, (self.folder, self.staging)

    def stage(self, utterances: Iterable[int]) -> None:
        """Fetch the shards of utterances that are not staged, several at a time; nothing to do for a local store."""
        if self.staging is not None:
            wanted = sorted({self.place(utterance)[0] for utterance in utterances})
            self.staging.bring(self.folder, [self.manifest["shards"][shard] for shard in wanted])

    def read(self, utterance: int, first: int, out_TF: np.ndarray) -> None:
        """Decode frames first, first + 1, ... into `out_TF` (float32); edge frames are repeated beyond the ends."""
        shard, own, start = self.place(utterance)
        feats_TF = self._map(shard, "feats")[start : start + int(self.lengths[utterance])]
        copy_with_edges(feats_TF, first, out_TF)
        if self.storage == "uint8":
            least_F, step_F = self._map(shard, "scales")[own]
            out_TF *= step_F
            out_TF += least_F

    def feats(self, utterance: int) -> np.ndarray:
        """All frames of an utterance, float32 (T, F)."""
        out_TF = np.empty((int(self.lengths[utterance]), self.dims), np.float32)
        self.read(utterance, 0, out_TF)
        return out_TF

    def targets(self, utterance: int, first: int = 0, last: int | None = None) -> np.ndarray:
        """Targets of the frames [first, last)."""
        shard, _, start = self.place(utterance)
        last = int(self.lengths[utterance]) if last is None else last
        return self._map(shard, "targets")[start + first : start + last]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all utterances, read on first use, since training needs none."""
        found: list[str] = []
        for shard in self.manifest["shards"]:
            path = self.folder / f"{shard['name']}.names.txt"
            with making_sense_of(path, AGAIN):
                own = _part(self.folder, shard, "names.txt").decode().split("\n")[:-1] if shard["utterances"] else []
                if len(own) != shard["utterances"]:
                    raise CorpusError(f"{path} holds {len(own)} names, not {shard['utterances']}: {AGAIN}")
            found += own
        return tuple(found)

    def place(self, utterance: int) -> tuple[int, int, int]:
        """Shard of an utterance, index in it, and first frame in it."""
        shard = int(self._firsts.searchsorted(utterance, "right")) - 1
        first = int(self._firsts[shard])
        return shard, utterance - first, int(self._starts[utterance] - self._starts[first])

    def shape(self, shard: int) -> tuple[int, int]:
        """Frames and columns of a shard."""
        return self.manifest["shards"][shard]["frames"], self.dims

    @cached_property
    def _firsts(self) -> npt.NDArray[np.int64]:
        """The first utterance of each shard."""
        return np.cumsum([0, *(shard["utterances"] for shard in self.manifest["shards"])])

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        """Frames of the whole store before each utterance and before each shard."""
        return np.cumsum(np.concatenate([[0], self.lengths]), dtype=np.int64)

    @cached_property
    def _maps(self) -> dict[tuple[int, str], np.ndarray]:
        return {}

    def _map(self, shard: int, what: str) -> np.ndarray:
        if self.staging is None:
            return self._mapped_in(self.folder, shard, what)
        for _ in range(TRIES):
            folder = self.staging.shard(self.folder, self.manifest["shards"][shard])
            try:
                return self._mapped_in(folder, shard, what)
            except FileNotFoundError:  # another learner needed the room since then
                continue
        raise CorpusError(f"{self.staging.folder} is too small for its learners: raise task.staging.gigabytes")

    def _mapped_in(self, folder: Path, shard: int, what: str) -> np.ndarray:
        found = self._maps.get((shard, what))
        if found is None:
            facts = self.manifest["shards"][shard]
            path = folder / f"{facts['name']}.{what}.npy"
            shapes = {"targets": (facts["frames"],), "scales": (facts["utterances"], 2, self.dims)}
            kinds = {"targets": "iu", "scales": "f"}
            found, pages = mapped(path, shapes.get(what, self.shape(shard)), kinds.get(what, "fu"))
            if hasattr(mmap, "MADV_RANDOM"):  # chunks are far apart: reading ahead would fetch 128 KB for 5
                pages.madvise(mmap.MADV_RANDOM)
            if self.staging is not None:  # maps would hold the disk space of shards that have left
                for other in {s for s, _ in self._maps if not self.staging.holds(self.manifest["shards"][s])}:
                    for name in ("feats", "scales", "targets"):
                        self._maps.pop((other, name), None)
            self._maps[shard, what] = found
        return found


def mapped(path: Path, wanted: tuple[int, ...], kinds: str) -> tuple[np.ndarray, mmap.mmap]:
    """An .npy file as an array, and its pages, of which those in use are read.

    Raises:
        CorpusError: the file is damaged, or holds an array of another shape than `wanted` or another kind than `kinds`.
    """
    with making_sense_of(path, AGAIN):
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        if found.shape != wanted or found.dtype.kind not in kinds:
            raise CorpusError(f"{path} holds {found.dtype} of shape {found.shape}, not {wanted}: {AGAIN}")
        return found.view(np.ndarray), found._mmap


def open_store(folder: Path, staging: Staging | None = None) -> FrameStore:
    """Open a prepared corpus; the sizes of all files are checked, but not the checksums (see `damages`).

    Of a remote corpus the manifest and the lengths are read; its shards are staged when they are needed, and checked.

    Args:
        folder: local folder or URL of the store.
        staging: place of local copies, for a URL; `Staging()` by default.

    Raises:
        CorpusError: there is no corpus, it has no targets, its preparation was not finished, or a file is missing or
            has the wrong size.
    """
    store = open_frames(location(folder), staging)
    for shard in store.manifest["shards"]:
        if f"{shard['name']}.targets.npy" not in shard["files"]:
            raise CorpusError(f"{folder} holds features without targets: prepare the corpus with --alignments")
    return store


def open_frames(folder: Path, staging: Staging | None = None) -> FrameStore:
    """Open a store with or without targets, as `open_store` does."""
    path = folder / MANIFEST
    if not is_remote(path) and not path.is_file():
        raise CorpusError(f"{folder} has no {MANIFEST}: not a prepared corpus, or its preparation was not finished")
    manifest = read_object(path, AGAIN)
    if manifest.get("format") != FORMAT:
        raise CorpusError(f"{path} is of format {manifest.get('format')!r}, this version reads {FORMAT}: prepare again")
    with making_sense_of(path, AGAIN):
        _check_manifest(manifest)
        for shard in manifest["shards"] if not is_remote(folder) else ():
            for name, (size, _) in shard["files"].items():
                file = folder / name
                if not file.is_file() or file.stat().st_size != size:
                    raise CorpusError(f"{file} is missing or does not have its {size} bytes: {AGAIN}")
    if not is_remote(folder):
        return FrameStore(folder, manifest, np.concatenate([_lengths(folder, s) for s in manifest["shards"]]))
    with ThreadPoolExecutor(THREADS) as threads:
        lengths = list(threads.map(partial(_lengths, folder), manifest["shards"]))
    return FrameStore(folder, manifest, np.concatenate(lengths), staging or Staging())


def _check_manifest(manifest: Mapping[str, Any]) -> None:
    """Raise an error unless the manifest has the form in which it is written."""
    if manifest["storage"] not in get_args(Storage) or not 0 < manifest["columns"] < MOST_COLUMNS:
        raise ValueError(f"storage {manifest['storage']!r}, columns {manifest['columns']!r}")
    for shard in manifest["shards"]:
        name, counts = shard["name"], (shard["utterances"], shard["frames"])
        if not re.fullmatch(r"\d{5,}", name) or not all(isinstance(n, int) and n >= 0 for n in counts):
            raise ValueError(f"shard {name!r} of {counts[0]!r} utterances and {counts[1]!r} frames")
        if any(not re.fullmatch(rf"{name}\.[a-z]+\.(npy|txt)", file) for file in shard["files"]):
            raise ValueError(f"shard {name} names files that are not its own: {sorted(shard['files'])}")
        for size, checksum in shard["files"].values():
            if type(size) is not int or size < 0 or not isinstance(checksum, str):
                raise ValueError(f"shard {name} has a file of {size!r} bytes with the checksum {checksum!r}")
        _ = [Problem(**problem) for problem in shard["problems"]]
    if not manifest["shards"]:
        raise ValueError("no shards")


def _lengths(folder: Path, shard: Mapping[str, Any]) -> npt.NDArray[np.int32]:
    """Frames of each utterance of a shard."""
    path = folder / f"{shard['name']}.lengths.npy"
    with making_sense_of(path, AGAIN):
        found: npt.NDArray[np.int32] = np.load(io.BytesIO(_part(folder, shard, "lengths.npy")), allow_pickle=False)
        fits = found.shape == (shard["utterances"],) and found.dtype == np.int32 and (found >= 0).all()
        if not fits or int(found.sum(dtype=np.int64)) != shard["frames"]:
            raise CorpusError(f"{path} holds no {shard['utterances']} lengths of {shard['frames']} frames: {AGAIN}")
        return found


def _part(folder: Path, shard: Mapping[str, Any], end: str) -> bytes:
    """The content of a small file of a shard; that of a remote one is checked."""
    name = f"{shard['name']}.{end}"
    return fetched(folder / name, *shard["files"][name]) if is_remote(folder) else (folder / name).read_bytes()


class ShardPart(Protocol):
    """The source of one shard. Several processes receive it pickled, so it should refer to data, not hold it."""

    def utterances(self) -> Iterator[AlignedFrames | Problem]:
        """The utterances in order; a `Problem` for each one that is left out."""


def make(
    folder: Path,
    parts: Sequence[ShardPart],
    storage: Storage,
    processes: Jobs = 1,
    progress: bool = False,
    outdated: Collection[int] = (),
    title: str = "shards",
) -> FrameStore:
    """Prepare shards that are missing or incomplete, one per part, and open the store.

    Args:
        folder: folder of this store alone; its name should identify the content, since complete shards are kept. The
            shards of a remote one are made in a temporary folder, one for each process.
        parts: sources of the shards.
        storage: type of stored values: float32 keeps every bit, float16 half of them, uint8 255 steps a column and
            utterance.
        processes: up to that many processes start (`spawn`) if the work is worth it; or an engine.
        progress: show a progress bar.
        outdated: numbers of shards to make again, whatever their state.
        title: name of the progress bar.

    Raises:
        CorpusError: more than 1 % of the utterances cannot be used.
        ValueError: an utterance has different numbers of targets and frames.
    """
    folder = location(folder)
    jobs = _jobs(folder, parts, storage, outdated)
    for _ in with_bar(in_processes(jobs, processes), title, len(jobs), progress):
        pass
    _write_manifest(folder, len(parts), storage)
    return open_frames(folder)


def _jobs(
    folder: Path, parts: Sequence[ShardPart], storage: Storage, outdated: Collection[int]
) -> list[Callable[[], None]]:
    """The work that makes the shards that are missing or incomplete."""
    numbers = range(len(parts))
    if is_remote(folder):
        marks = marks_in(folder)
        absent = [n for n in numbers if n in outdated or not _is_published(folder, n, marks)]
        return [partial(_make_and_publish, folder, n, parts[n], storage) for n in absent]
    folder.mkdir(parents=True, exist_ok=True)
    seen = [stamp(folder, number) for number in numbers]
    missing = [number for number in numbers if number in outdated or not is_whole(folder, number)]
    return [
        partial(_make_unless_made, folder, n, seen[n], partial(make_shard, folder, n, parts[n], storage))
        for n in missing
    ]


def _write_manifest(folder: Path, count: int, storage: Storage) -> None:
    """Write the entries of all shards into the manifest, unless it holds them already: a cache may be read-only."""
    shards = [json.loads(bytes_of(folder / f"{number:05}.json")) for number in range(count)]
    problems = [Problem(**problem) for shard in shards for problem in shard["problems"]]
    check_losses(sum(shard["utterances"] for shard in shards), problems)
    columns = next(shard["columns"] for shard in shards if shard["utterances"])
    odd = [s["name"] for s in shards if s["utterances"] and s["columns"] != columns]
    if odd:
        raise CorpusError(f"{folder}: shards {odd[:3]} do not have the {columns} values a frame of the first one")
    manifest = {"format": FORMAT, "storage": storage, "columns": columns, "shards": shards}
    content, path = json.dumps(manifest, ensure_ascii=False).encode(), folder / MANIFEST
    if is_remote(path):
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            publish(Path(file.name), path)
    elif not path.is_file() or path.read_bytes() != content:
        write_then_rename(path, [content])


def _make_and_publish(folder: RemotePath, number: int, part: ShardPart, storage: Storage) -> None:
    """Make a shard in a temporary folder and publish its files, the one that names them last."""
    with tempfile.TemporaryDirectory() as scratch:
        here, marker = Path(scratch), f"{number:05}.json"
        make_shard(here, number, part, storage)
        for name in (*read_object(here / marker, AGAIN)["files"], marker):
            publish(here / name, folder / name)


def _is_published(folder: RemotePath, number: int, marks: Mapping[str, Mark]) -> bool:
    """True if a shard has all its files with the right sizes."""
    marker = f"{number:05}.json"
    files = read_object(folder / marker, AGAIN)["files"] if marker in marks else {}
    return bool(files) and all(name in marks and marks[name][0] == size for name, (size, _) in files.items())


Stamp = tuple[int, int]


def stamp(folder: Path, number: int) -> Stamp | None:
    """A mark that changes when a shard's JSON is written again, even with the same content; None without one."""
    try:
        found = (folder / f"{number:05}.json").stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _make_unless_made(folder: Path, number: int, seen: Stamp | None, make: Callable[[], None]) -> None:
    """Write a shard by `make`, unless another command has made it since its JSON had the stamp `seen`."""
    if stamp(folder, number) in (None, seen) or not is_whole(folder, number):
        make()


def is_whole(folder: Path, number: int) -> bool:
    """True if a shard has all its files, with the right checksums; damage is logged."""
    if not (folder / f"{number:05}.json").is_file():
        return False
    found = damages(folder, number)
    if found:
        log.warning("%s, shard %05d: %s; the shard is made again", folder, number, "; ".join(found))
    return not found


def damages(folder: Path, number: int) -> list[str]:
    """Faults of a shard, one line per file; empty if every checksum is right. Reads the whole shard."""
    marker = folder / f"{number:05}.json"
    try:
        with making_sense_of(marker, AGAIN):
            entry = read_object(marker, AGAIN)
            files = {Path(n).name: (int(s), str(c)) for n, (s, c) in entry["files"].items()}
            _ = int(entry["utterances"]), int(entry["columns"]), [Problem(**each) for each in entry["problems"]]
    except (OSError, CorpusError) as error:
        return [f"{marker.name} cannot be read ({error})"]
    found = []
    for name, (size, checksum) in files.items():
        file = folder / name
        if not file.is_file():
            found.append(f"{name} is missing")
        elif file.stat().st_size != size:
            found.append(f"{name} has {file.stat().st_size} bytes instead of {size}")
        elif sha256_of(file) != checksum:
            found.append(f"{name} has another checksum than when it was written")
    return found


def make_shard(folder: Path, number: int, part: ShardPart, storage: Storage) -> None:
    """Write the files of one shard, the one that names them last.

    An earlier one of that name stays until then, for other commands that read it: checksums tell if it is out of date.
    """
    shard = f"{number:05}"
    names, feats, scales, targets, problems = [], [], [], [], []
    for utterance in part.utterances():
        if isinstance(utterance, Problem):
            problems.append(asdict(utterance))
            continue
        values, scale = encoded(utterance.feats, storage)
        names.append(utterance.name)
        feats.append(values)
        scales.append(scale)
        if utterance.targets is not None:
            check_lengths(utterance.name, utterance.feats, utterance.targets)
            targets.append(utterance.targets)
    frames, columns = sum(map(len, feats)), feats[0].shape[1] if feats else 0
    files: dict[str, list[bytes | memoryview]] = {}
    files["feats.npy"] = [npy_header(np.dtype(storage).str, (frames, columns)), *(_bytes(values) for values in feats)]
    if targets or not names:
        all_targets = np.concatenate(targets) if targets else np.empty(0, np.int32)
        fit = all_targets.max(initial=0) < 2**16  # into two bytes each
        files["targets.npy"] = _npy(all_targets.astype(np.uint16 if fit else np.int32))
    files["lengths.npy"] = _npy(np.array([len(values) for values in feats], np.int32))
    if storage == "uint8":
        files["scales.npy"] = _npy(np.stack(scales) if scales else np.empty((0, 2, columns), np.float32))
    files["names.txt"] = [("\n".join(names) + "\n").encode()]
    written = {f"{shard}.{end}": write_then_rename(folder / f"{shard}.{end}", own) for end, own in files.items()}
    facts = {"name": shard, "utterances": len(names), "frames": frames, "columns": columns}
    content = json.dumps({**facts, "problems": problems, "files": written}, ensure_ascii=False)
    write_then_rename(folder / f"{shard}.json", [content.encode()])


def encoded(feats_TF: np.ndarray, storage: Storage) -> tuple[np.ndarray, np.ndarray]:
    """Values in the stored type, and for uint8 (2, F) least values and steps: value = least + step * stored."""
    if storage != "uint8":
        return feats_TF.astype(storage), np.empty((2, 0), np.float32)
    least_F = feats_TF.min(0).astype(np.float32)
    step_F = ((feats_TF.max(0) - least_F) / LEVELS).astype(np.float32)
    kept = np.rint((feats_TF - least_F) / np.where(step_F > 0, step_F, 1))
    return np.clip(kept, 0, LEVELS).astype(np.uint8), np.stack([least_F, step_F])


def _npy(array: np.ndarray) -> list[bytes | memoryview]:
    return [npy_header(array.dtype.str, array.shape), _bytes(array)]


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).data


def npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    """The header of an .npy file of a little-endian array in C order."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    return header.getvalue()


def write_then_rename(path: Path, parts: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a file as a whole; return its bytes and its SHA-256."""
    checksum = hashlib.sha256()
    with replacing(path) as beside, beside.open("xb") as file:
        for part in parts:
            checksum.update(part)
            file.write(part)
        return file.tell(), checksum.hexdigest()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
