"""Decoding of a set of utterances in several processes, with counts of problems and the speed.

Results can be saved utterance by utterance, so that interrupted decoding can continue. A file belongs to one graph and
one setting of the search; each of its lines names an utterance and a digest of its scores. Other scores are decoded
again, so a file can never give the words of another model.
"""

from __future__ import annotations

import base64
import json
import os
import time
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from murmur.core.counted import counted, named
from murmur.core.plain_files import UNREADABLE, plain_file
from murmur.core.whole_files import FinishedLines
from murmur.execution.executors import Engine, Jobs, engine_of
from murmur.execution.processes import in_order
from murmur.execution.stored_arrays import StoredArray, folder_of
from murmur.execution.workers import WorkerDied
from murmur.speech.decoding.decoder import DecodeOptions, Decoder, Hypothesis
from murmur.speech.decoding.graph_store import StoredGraph

SYNC_SECONDS = 1.0  # work lost at most in a crash of the host; a crash of the program loses one line
Pair = tuple[str, np.ndarray]
Given = tuple[str, np.ndarray | StoredArray]  # for workers elsewhere, scores are written to disk


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


Scores = Mapping[str, np.ndarray] | Iterable[tuple[str, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Decoded:
    """Results of a set, by utterance in sorted order.

    Attributes:
        lists: hypotheses of every utterance, best first; one unless `DecodeOptions.listed` asks for more.
        frames: number of frames of all utterances.
        search_seconds: processor time of the search, summed over processes; other load does not lengthen it.
        wall_seconds: time from the first utterance sent out to the last result, including reading of graphs.
    """

    lists: Mapping[str, tuple[Hypothesis, ...]]
    frames: int
    search_seconds: float
    wall_seconds: float

    @property
    def hypotheses(self) -> dict[str, Hypothesis]:
        """The best hypothesis of every utterance."""
        return {name: listed[0] for name, listed in self.lists.items()}

    @property
    def empty(self) -> tuple[str, ...]:
        """Utterances without any word (no frames, or nothing but silence found)."""
        return tuple(name for name, listed in self.lists.items() if not listed[0].words)

    @property
    def partial(self) -> tuple[str, ...]:
        """Utterances whose search ended outside a final state; their words are the best partial path."""
        return tuple(name for name, listed in self.lists.items() if not listed[0].complete)

    @property
    def texts(self) -> dict[str, str]:
        """`{utterance: words}`, to be scored."""
        return {name: found.text for name, found in self.hypotheses.items()}

    def real_time_factor(self, frames_per_second: float = 100.0) -> float:
        """Processor seconds of the search per second of audio; nan for no audio."""
        return self.search_seconds * frames_per_second / self.frames if self.frames else float("nan")

    def summary(self, frames_per_second: float = 100.0) -> str:
        """One line: number of utterances, speed, and the names of empty or partial ones."""
        seconds = self.frames / frames_per_second
        line = (
            f"{counted(len(self.lists), 'utterance')}, {seconds:.1f} s of audio in {self.search_seconds:.1f} s of one"
            f" core (real-time factor {self.real_time_factor(frames_per_second):.3f}), {self.wall_seconds:.1f} s on the"
            " clock"
        )
        for title, names in (("empty", self.empty), ("partial", self.partial)):
            if names:
                line += f"; {len(names)} {title}: {named(names)}"
        return line


def decode_set(
    graph_folder: Path,
    scores: Scores,
    options: DecodeOptions | None = None,
    jobs: Jobs = 1,
    progress: Callable[[int, int], None] | None = None,
    kept: Path | None = None,
) -> Decoded:
    """Decode utterances with the graph stored in `graph_folder` (see graph_store).

    `scores` maps utterances to (T, C) score matrices, or yields such pairs, which are taken a few at a time so that a
    generator may compute them. With `jobs` > 1, that many processes each read the graph once; results do not depend on
    `jobs`. Each result is written to the folder `kept`, which several calls may share, and results found there are not
    decoded again. `progress(done, known)` is called after each utterance; `known` of those done were found.

    Raises:
        FileNotFoundError, DamagedGraphError: no usable graph.
        ValueError: `jobs` < 1, a repeated utterance, or scores that do not fit the graph; names the utterance.
    """
    engine = engine_of(jobs)
    graph = StoredGraph.of(Path(graph_folder))
    options = options or DecodeOptions()
    pairs = scores.items() if isinstance(scores, Mapping) else scores
    begin = time.perf_counter()
    search = partial(_searched, graph, options, engine)
    found: dict[str, Result] = {}
    already = None if kept is None else KeptResults(kept, graph.key, options)
    decoding = search(pairs) if already is None else _kept(search, pairs, already)
    with closing(decoding) as results:  # after an error no process continues
        for result in results:
            if result.name in found:
                raise ValueError(f"utterance {result.name} was given twice: names must be unique")
            found[result.name] = result
            if progress is not None:
                progress(len(found), 0 if already is None else already.told)
    every = found.values()
    frames, seconds = sum(r.frames for r in every), sum(r.seconds for r in every)
    return Decoded({n: found[n].hypotheses for n in sorted(found)}, frames, seconds, time.perf_counter() - begin)


def _opened(graph: StoredGraph, options: DecodeOptions) -> Callable[[Given], Result]:
    """The search of one process."""
    return partial(_decoded, Decoder(graph.read(), options))


def _decoded(decoder: Decoder, given: Given) -> Result:
    name, scores_TC = given
    if isinstance(scores_TC, StoredArray):
        scores_TC = scores_TC.read()
    begin = time.thread_time()
    try:
        found = decoder.results(scores_TC)
    except ValueError as error:
        raise ValueError(f"utterance {name}: {error}") from error
    return Result(name, tuple(found), len(scores_TC), time.thread_time() - begin)


def _searched(
    graph: StoredGraph, options: DecodeOptions, engine: Engine, pairs: Iterable[Pair]
) -> Generator[Result, None, None]:
    under_way: deque[tuple[str, Path]] = deque()
    graph = replace(graph, folder=graph.folder.absolute())
    with folder_of(engine, "scores") as folder:

        def taken() -> Iterator[Given]:
            for number, (name, matrix) in enumerate(pairs):
                under_way.append((name, folder / f"{number}.npy"))
                yield name, matrix if engine.is_here else StoredArray.write(under_way[-1][1], matrix)

        opened = partial(_opened, graph, options)
        with closing(in_order(opened, taken(), engine, [graph.folder / "graph.json"])) as results:
            for result in results:
                name, scores = under_way.popleft()
                scores.unlink(missing_ok=True)
                if isinstance(result, WorkerDied):
                    raise WorkerDied(f"every process died that decoded {name}: out of memory? Use fewer --jobs")
                yield result


def _kept(
    search: Callable[[Iterable[Pair]], Generator[Result, None, None]], pairs: Iterable[Pair], kept: KeptResults
) -> Generator[Result, None, None]:
    known: list[Result] = []
    with kept, closing(search(kept.left(pairs, known))) as results:
        for result in results:
            kept.add(result)
            yield result
            yield from _told(known, kept)
    yield from _told(known, kept)


def _told(known: list[Result], kept: KeptResults) -> Iterator[Result]:
    while known:
        kept.told += 1
        yield known.pop()
