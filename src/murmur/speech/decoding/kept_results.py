"""Results of decoding, saved utterance by utterance, so that interrupted decoding can continue.

A file belongs to one graph and one setting of the search; each of its lines names an utterance and a digest of its
scores. Other scores are decoded again, so a file can never give the words of another model.
"""

from __future__ import annotations

import base64
import json
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from murmur.core.plain_files import UNREADABLE, plain_file
from murmur.core.whole_files import FinishedLines
from murmur.speech.decoding.decoder import DecodeOptions, Hypothesis

SYNC_SECONDS = 1.0  # work lost at most in a crash of the host; a crash of the program loses one line
Pair = tuple[str, np.ndarray]


class Result(NamedTuple):
    """A decoded utterance: its hypotheses (best first), its frames, and the processor seconds that the search took."""

    name: str
    hypotheses: tuple[Hypothesis, ...]
    frames: int
    seconds: float


class KeptResults:
    """The results in one file. Use as a context manager; an unfinished last line is removed."""

    def __init__(self, folder: Path, graph_key: str, options: DecodeOptions) -> None:
        content = json.dumps([graph_key, asdict(options)], sort_keys=True)
        self.path = folder / f"{blake2b(content.encode(), digest_size=8).hexdigest()}.jsonl"
        self._known: dict[str, dict[str, Any]] = {}
        self._digests: dict[str, str] = {}
        self._synced = time.monotonic()
        self.told = 0  # results of an earlier start that the caller has had

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = plain_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        whole = 0
        for line in FinishedLines(self.path):
            row = _row(line)
            if row is None:
                break
            self._known[row["name"]] = row
            whole += len(line) + 1
        self._file.truncate(whole)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def left(self, pairs: Iterable[Pair], found: list[Result]) -> Iterator[Pair]:
        """The pairs still to be decoded; the results of the others are appended to `found`."""
        for name, scores_TC in pairs:
            digest = blake2b(np.ascontiguousarray(scores_TC).data, digest_size=16).hexdigest()
            row = self._known.get(name)
            if row is not None and row["scores"] == digest:
                found.append(_read(row))
            else:
                self._digests[name] = digest
                yield name, scores_TC

    def add(self, result: Result) -> None:
        """Save the result of one of the pairs that were left."""
        row = {
            "name": result.name,
            "scores": self._digests[result.name],
            "hypotheses": [_written(found) for found in result.hypotheses],
            "frames": result.frames,
            "seconds": result.seconds,
        }
        self._file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        if time.monotonic() - self._synced > SYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()


def _row(line: bytes) -> dict[str, Any] | None:
    """The content of a line; None if it is not one of this format."""
    try:
        row = json.loads(line)
        _read(row)
    except (*UNREADABLE, zlib.error):
        return None
    return row if isinstance(row.get("scores"), str) else None


def _written(found: Hypothesis) -> dict[str, Any]:
    labels = base64.b64encode(zlib.compress(found.labels.astype("<i4").tobytes())).decode()
    return {"words": found.words, "labels": labels, "cost": found.cost, "complete": found.complete}


def _read(row: dict[str, Any]) -> Result:
    hypotheses = tuple(_hypothesis(part) for part in row["hypotheses"])
    if not hypotheses:
        raise ValueError("a result without a hypothesis")
    return Result(str(row["name"]), hypotheses, int(row["frames"]), float(row["seconds"]))


def _hypothesis(part: dict[str, Any]) -> Hypothesis:
    labels = np.frombuffer(zlib.decompress(base64.b64decode(part["labels"])), "<i4").astype(np.int32)
    return Hypothesis(tuple(str(word) for word in part["words"]), labels, float(part["cost"]), bool(part["complete"]))
