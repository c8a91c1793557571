"""Preparation of a corpus for `frame_store`: parallel, resumable, each shard independent of the others.

Complete shards are kept and the others are made: a killed preparation continues, and damage costs only the damaged
shard.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from murmur.execution.processes import in_processes, with_bar
from murmur.speech.corpus.corpus import CorpusError, Problem, check_losses
from murmur.speech.features.chunks import check_lengths
from murmur.speech.features.frame_store import FORMAT, MANIFEST, FrameStore, Storage, damages, open_store
from murmur.speech.features.shards import make_unless_made, npy_header, stamp, write_then_rename

log = logging.getLogger(__name__)
UTTERANCES_PER_SHARD = 1024
LEVELS = 255  # steps between the least and the greatest value of a column


@dataclass(frozen=True)
class AlignedFrames:
    """An utterance to store: feats (T, F), and a target per frame, (T,), integers from 0."""

    name: str
    feats: np.ndarray
    targets: np.ndarray


class ShardPart(Protocol):
    """The source of one shard. Several processes receive it pickled, so it should refer to data, not hold it."""

    def utterances(self) -> Iterator[AlignedFrames | Problem]:
        """The utterances in order; a `Problem` for each one that is left out."""


def make(
    folder: Path, parts: Sequence[ShardPart], storage: Storage, processes: int = 1, progress: bool = False
) -> FrameStore:
    """Prepare shards that are missing or incomplete, one per part, and open the store.

    Args:
        folder: folder of this store alone; its name should identify the content, since complete shards are kept.
        parts: sources of the shards.
        storage: type of stored values: float32 keeps every bit, float16 half of them, uint8 255 steps a column and
            utterance.
        processes: 1 works in this process; otherwise up to that many processes start (`spawn`) if the work is worth it.
        progress: show a progress bar.
    Raises:
        CorpusError: more than 1 % of the utterances cannot be used.
        ValueError: an utterance has different numbers of targets and frames.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    seen = [stamp(folder, number) for number in range(len(parts))]
    missing = [number for number in range(len(parts)) if not _is_whole(folder, number)]
    makes = {number: partial(make_shard, folder, number, parts[number], storage) for number in missing}
    jobs = [partial(make_unless_made, folder, number, seen[number], _is_whole, make) for number, make in makes.items()]
    for _ in with_bar(in_processes(jobs, processes), "shards", len(jobs), progress):
        pass
    shards = [json.loads((folder / f"{number:05}.json").read_text(encoding="utf-8")) for number in range(len(parts))]
    problems = [Problem(**problem) for shard in shards for problem in shard["problems"]]
    check_losses(sum(shard["utterances"] for shard in shards), problems)
    columns = next(shard["columns"] for shard in shards if shard["utterances"])
    odd = [s["name"] for s in shards if s["utterances"] and s["columns"] != columns]
    if odd:
        raise CorpusError(f"{folder}: shards {odd[:3]} do not have the {columns} values a frame of the first one")
    manifest = {"format": FORMAT, "storage": storage, "columns": columns, "shards": shards}
    content, path = json.dumps(manifest, ensure_ascii=False).encode(), folder / MANIFEST
    if not path.is_file() or path.read_bytes() != content:
        write_then_rename(path, [content])
    return open_store(folder)


def _is_whole(folder: Path, number: int) -> bool:
    if not (folder / f"{number:05}.json").is_file():
        return False
    found = damages(folder, number)
    if found:
        log.warning("%s, shard %05d: %s; the shard is made again", folder, number, "; ".join(found))
    return not found


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
        check_lengths(utterance.name, utterance.feats, utterance.targets)
        values, scale = encoded(utterance.feats, storage)
        names.append(utterance.name)
        feats.append(values)
        scales.append(scale)
        targets.append(utterance.targets)
    columns = feats[0].shape[1] if feats else 0
    arrays = {
        "feats": np.concatenate(feats) if feats else np.empty((0, columns), storage),
        "targets": _narrow(np.concatenate(targets) if targets else np.empty(0, np.int32)),
        "lengths": np.array([len(values) for values in feats], np.int32),
    }
    if storage == "uint8":
        arrays["scales"] = np.stack(scales) if scales else np.empty((0, 2, columns), np.float32)
    files = {f"{shard}.{what}.npy": _npy(array) for what, array in arrays.items()}
    files[f"{shard}.names.txt"] = [("\n".join(names) + "\n").encode()]
    written = {name: write_then_rename(folder / name, pieces) for name, pieces in files.items()}
    facts = {"name": shard, "utterances": len(names), "frames": len(arrays["targets"]), "columns": columns}
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


def _narrow(targets: np.ndarray) -> np.ndarray:
    """Targets in two bytes each if they fit."""
    return targets.astype(np.uint16 if not len(targets) or targets.max() < 2**16 else np.int32)


def _npy(array: np.ndarray) -> list[bytes | memoryview]:
    return [npy_header(array.dtype.str, array.shape), np.ascontiguousarray(array).data]
