"""Decoding of a set of utterances in several processes, with counts of problems and the speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np

from murmur.core.counted import counted, named
from murmur.execution.workers import Worker, WorkerDied, end_workers, start_worker, wait_for_reason
from murmur.speech.decoding.decoder import DecodeOptions, Decoder, Hypothesis
from murmur.speech.decoding.graph_store import StoredGraph
from murmur.speech.decoding.kept_results import KeptResults, Pair, Result

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


@dataclass(frozen=True)
class _Worker:
    """Times a decoder and names the utterance of an error."""

    decoder: Decoder

    def run(self, name: str, scores_TC: np.ndarray) -> Result:
        begin = time.thread_time()
        try:
            found = self.decoder.results(scores_TC)
        except ValueError as error:
            raise ValueError(f"utterance {name}: {error}") from error
        return Result(name, tuple(found), len(scores_TC), time.thread_time() - begin)


def decode_set(
    graph_folder: Path,
    scores: Scores,
    options: DecodeOptions | None = None,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
    kept: Path | None = None,
) -> Decoded:
    """Decode utterances with the graph stored in `graph_folder` (see graph_store).

    `scores` maps utterances to (T, C) score matrices, or yields such pairs, which are taken a few at a time so that a
    generator may compute them. With `jobs` > 1, that many processes each read the graph once; results do not depend on
    `jobs`. Each result is written at once to the folder `kept`, which several calls may share, and results found there
    are not decoded again. `progress(done, known)` is called after each utterance; `known` of those done were found.

    Raises:
        FileNotFoundError, DamagedGraphError: no usable graph.
        ValueError: `jobs` < 1, a repeated utterance, or scores that do not fit the graph; names the utterance.
    """
    if jobs < 1:
        raise ValueError(f"jobs={jobs}: at least one process must decode")
    graph = StoredGraph.of(Path(graph_folder))
    options = options or DecodeOptions()
    pairs = scores.items() if isinstance(scores, Mapping) else scores
    begin = time.perf_counter()
    search = partial(_searched, graph, options, jobs)
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
    return _collected(found, time.perf_counter() - begin)


def _searched(
    graph: StoredGraph, options: DecodeOptions, jobs: int, pairs: Iterable[Pair]
) -> Generator[Result, None, None]:
    if jobs > 1:
        yield from _in_processes(graph, pairs, options, jobs)
        return
    worker = _Worker(Decoder(graph.read(), options))
    for name, matrix in pairs:
        yield worker.run(name, matrix)


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


def _collected(found: Mapping[str, Result], wall_seconds: float) -> Decoded:
    lists = {name: found[name].hypotheses for name in sorted(found)}
    return Decoded(
        lists=lists,
        frames=sum(r.frames for r in found.values()),
        search_seconds=sum(r.seconds for r in found.values()),
        wall_seconds=wall_seconds,
    )


@contextmanager
def _processes(graph: StoredGraph, options: DecodeOptions, jobs: int) -> Iterator[list[Connection]]:
    """Connections to decoding processes, which end when the context is left."""
    started: list[Worker] = []
    try:
        for _ in range(jobs):
            start_worker(started, _serve, graph, options)
        yield [worker.connection for worker in started]
    finally:
        end_workers(started)


def _in_processes(
    graph: StoredGraph, pairs: Iterable[tuple[str, np.ndarray]], options: DecodeOptions, jobs: int
) -> Iterator[Result]:
    """Each process has one utterance at a time, so that two sides never block on full pipes at the same time."""
    with _processes(graph, options, jobs) as idle:
        busy: dict[Connection, str] = {}
        for name, matrix in pairs:
            if not idle:
                yield from _answers(busy, idle)
            connection = idle.pop()
            busy[connection] = name
            _send(connection, (name, matrix))
        while busy:
            yield from _answers(busy, idle)


def _answers(busy: dict[Connection, str], idle: list[Connection]) -> Iterator[Result]:
    """Wait for at least one process to finish; it becomes idle."""
    for connection in wait(list(busy)):
        assert isinstance(connection, Connection)
        answer = _receive(connection, busy.pop(connection))
        idle.append(connection)
        yield answer


def _send(connection: Connection, request: tuple[str, np.ndarray]) -> None:
    try:
        connection.send(request)
    except (BrokenPipeError, ConnectionResetError):
        _receive(connection, request[0])  # raises the error that ended the process, or reports its death


def _receive(connection: Connection, name: str) -> Result:
    """The result of an utterance; errors of the process are raised here."""
    try:
        answer = connection.recv()
    except (EOFError, ConnectionResetError):
        wait_for_reason()
        raise WorkerDied(f"a decoding process died with utterance {name}: out of memory? Use fewer jobs") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _serve(connection: Connection, graph: StoredGraph, options: DecodeOptions) -> None:
    """Main function of a decoding process: answer requests until the other end closes. Errors are sent as values."""
    try:
        worker = _Worker(Decoder(graph.read(), options))
        while True:
            connection.send(worker.run(*connection.recv()))
    except (EOFError, BrokenPipeError):
        return  # the other end has closed, so no work or reader is left
    except (ValueError, OSError, RuntimeError) as error:
        connection.send(error)
