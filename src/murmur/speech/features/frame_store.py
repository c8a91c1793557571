"""A prepared corpus: frames with targets on disk, memory-mapped, at 4, 2 or 1 bytes per value, with checksums.

    manifest.json        storage, columns, every shard's files with their sizes and SHA-256
    00000.feats.npy      frames of the shard's utterances, one after the other, (frames, F)
    00000.scales.npy     uint8 only: least value and step of every column of every utterance, (utterances, 2, F)
    00000.targets.npy    a target per frame, (frames,)
    00000.lengths.npy    frames of each utterance, (utterances,)
    00000.names.txt      their names, one per line
    00000.json           the shard's entry in the manifest; written last, so that a shard without it is incomplete

The lengths and their running sum are held in memory, 12 bytes per utterance. `frame_shards` makes a store.
"""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from murmur.speech.corpus.corpus import CorpusError, Problem
from murmur.speech.corpus.file_errors import making_sense_of, read_object
from murmur.speech.features.chunks import copy_with_edges
from murmur.speech.features.shards import sha256_of

FORMAT = 1
AGAIN = "prepare the corpus again"
MOST_COLUMNS = 1 << 20
MANIFEST = "manifest.json"
Storage = Literal["float32", "float16", "uint8"]


@dataclass(frozen=True, eq=False)
class FrameStore:
    """A prepared corpus, opened by `open_store`: `Frames` for a `ChunkTable`.

    Attributes:
        folder: folder of the store.
        manifest: content of manifest.json.
        lengths: number of frames of each utterance, (U,) int32.
    """

    folder: Path
    manifest: Mapping[str, Any]
    lengths: npt.NDArray[np.int32]

    @property
    def dims(self) -> int:
        """Values per frame."""
        return int(self.manifest["columns"])

    @property
    def storage(self) -> Storage:
        """The format of stored values."""
        found: Storage = self.manifest["storage"]
        return found

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The parts left out when the store was made, with reasons."""
        return tuple(Problem(**problem) for shard in self.manifest["shards"] for problem in shard["problems"])

    def __len__(self) -> int:
        return len(self.lengths)

    def __reduce__(self) -> tuple[Callable[[Path], FrameStore], tuple[Path]]:
        """Recipe for pickling: another process opens the files itself."""
        return open_store, (self.folder,)

    def read(self, utterance: int, first: int, out_TF: np.ndarray) -> None:
        """Decode frames first, first + 1, ... into `out_TF` (float32); edge frames are repeated beyond the ends."""
        shard, own, start = self._place(utterance)
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
        shard, _, start = self._place(utterance)
        last = int(self.lengths[utterance]) if last is None else last
        return self._map(shard, "targets")[start + first : start + last]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all utterances, read on first use, since training needs none."""
        found: list[str] = []
        for shard in self.manifest["shards"]:
            path = self.folder / f"{shard['name']}.names.txt"
            with making_sense_of(path, AGAIN):
                own = path.read_text(encoding="utf-8").split("\n")[:-1] if shard["utterances"] else []
                if len(own) != shard["utterances"]:
                    raise CorpusError(f"{path} holds {len(own)} names, not {shard['utterances']}: {AGAIN}")
            found += own
        return tuple(found)

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

    def _place(self, utterance: int) -> tuple[int, int, int]:
        """Shard, index in it, and first frame in it."""
        shard = int(self._firsts.searchsorted(utterance, "right")) - 1
        first = int(self._firsts[shard])
        return shard, utterance - first, int(self._starts[utterance] - self._starts[first])

    def _map(self, shard: int, what: str) -> np.ndarray:
        found = self._maps.get((shard, what))
        if found is None:
            facts = self.manifest["shards"][shard]
            path = self.folder / f"{facts['name']}.{what}.npy"
            with making_sense_of(path, AGAIN):
                found = _mapped(path)
            shapes = {"targets": (facts["frames"],), "scales": (facts["utterances"], 2, self.dims)}
            kinds = {"targets": "iu", "scales": "f"}
            wanted = shapes.get(what, (facts["frames"], self.dims))
            if found.shape != wanted or found.dtype.kind not in kinds.get(what, "fu"):
                raise CorpusError(f"{path} holds {found.dtype} of shape {found.shape}, not {wanted}: {AGAIN}")
            self._maps[shard, what] = found
        return found


def _mapped(path: Path) -> np.ndarray:
    """An .npy file as an array; only the pages in use are read."""
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise CorpusError(f"{path} is an .npy file of version {version}, not one of ours: prepare the corpus again")
        shape, by_column, kind = np.lib.format.read_array_header_1_0(file)
        if by_column or kind.hasobject:
            raise CorpusError(f"{path} is an .npy file of another kind than ours: {AGAIN}")
        start, pages = file.tell(), mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):  # chunks are far apart: reading ahead would fetch 128 KB for 5
        pages.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(pages, kind, offset=start, count=math.prod(shape)).reshape(shape)


def open_store(folder: Path) -> FrameStore:
    """Open a prepared corpus; the sizes of all files are checked, but not the checksums (see `damages`).

    Raises:
        CorpusError: there is no corpus, its preparation was not finished, or a file is missing or has the wrong size.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise CorpusError(f"{folder} has no {MANIFEST}: not a prepared corpus, or its preparation was not finished")
    manifest = read_object(path, AGAIN)
    if manifest.get("format") != FORMAT:
        raise CorpusError(f"{path} is of format {manifest.get('format')!r}, this version reads {FORMAT}: prepare again")
    with making_sense_of(path, AGAIN):
        _check_manifest(manifest)
        for shard in manifest["shards"]:
            for name, (size, _) in shard["files"].items():
                file = Path(folder) / name
                if not file.is_file() or file.stat().st_size != size:
                    raise CorpusError(f"{file} is missing or does not have its {size} bytes: {AGAIN}")
    return FrameStore(Path(folder), manifest, np.concatenate([_lengths(folder, s) for s in manifest["shards"]]))


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
        _ = [Problem(**problem) for problem in shard["problems"]]
    if not manifest["shards"]:
        raise ValueError("no shards")


def _lengths(folder: Path, shard: Mapping[str, Any]) -> npt.NDArray[np.int32]:
    """Frames of each utterance of a shard."""
    path = Path(folder) / f"{shard['name']}.lengths.npy"
    with making_sense_of(path, AGAIN):
        found: npt.NDArray[np.int32] = np.load(path, allow_pickle=False)
        fits = found.shape == (shard["utterances"],) and found.dtype == np.int32 and (found >= 0).all()
        if not fits or int(found.sum(dtype=np.int64)) != shard["frames"]:
            raise CorpusError(f"{path} holds no {shard['utterances']} lengths of {shard['frames']} frames: {AGAIN}")
        return found


def damages(folder: Path, number: int) -> list[str]:
    """Faults of a shard, one line per file; empty if every checksum is right. Reads the whole shard."""
    marker = folder / f"{number:05}.json"
    try:
        with making_sense_of(marker, AGAIN):
            files = {Path(n).name: (int(s), str(c)) for n, (s, c) in read_object(marker, AGAIN)["files"].items()}
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
