"""A corpus cut into blocks that each stay in one process, and functions mapped over all blocks.

The cut depends on the corpus alone, not on the number of processes, and results come in the order of the blocks, so
sums have the same bits for any number of processes. The library holds the interpreter lock and its graphs cannot be
pickled, hence processes that keep their graphs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, TypeVar

import kaldifst
import numpy as np
from numpy.typing import NDArray

from murmur.execution.workers import PATIENCE_SECONDS, Worker, WorkerDied, end_workers, start_worker, wait_for_reason
from murmur.speech.hmm.fmllr import adapt
from murmur.speech.hmm.mixtures import FloatArray
from murmur.speech.hmm.phone_arcs import IntArray
from murmur.speech.hmm.projection import Projection, project

BLOCK_FRAMES = 25_000
MAX_BLOCKS = 64
Result = TypeVar("Result")


@dataclass
class Block:
    """Some utterances with the data that alignment and training keep between passes.

    Attributes:
        feats: {utterance: (T, F) features}, or scores by pdf.
        texts: {utterance: transcript}.
        graphs: training graphs of the current tree.
        tids: current alignments; an utterance that could not be aligned is absent.
        speakers: {utterance: speaker}; empty where no speaker is adapted.
        transforms: {speaker: W (D, D + 1)} of adapted speakers.
    """

    feats: Mapping[str, NDArray[np.float32]]
    texts: Mapping[str, str]
    graphs: dict[str, kaldifst.StdVectorFst] = field(default_factory=dict)
    tids: dict[str, IntArray] = field(default_factory=dict)
    speakers: Mapping[str, str] = field(default_factory=dict)
    transforms: Mapping[str, FloatArray] = field(default_factory=dict)

    def frames(self, utterance: str, projection: Projection | None) -> NDArray[np.float32]:
        """(T, D) the input of mixtures: projected frames, adapted to the speaker if the block holds a transform."""
        return adapt(self.transforms.get(self.speakers.get(utterance, "")), project(projection, self.feats[utterance]))

    def log_determinant(self, utterance: str) -> float:
        """ln |det A| of the speaker's transform [A b], which belongs to the log-likelihood of a frame."""
        transform = self.transforms.get(self.speakers.get(utterance, ""))
        return 0.0 if transform is None else float(np.linalg.slogdet(transform[:, :-1])[1])


def cut_into_blocks(
    feats: Mapping[str, NDArray[np.float32]], texts: Mapping[str, str], speakers: Mapping[str, str] | None = None
) -> list[Block]:
    """Blocks of about equally many frames, utterances in byte order of their names."""
    names = sorted(feats)
    total = sum(len(feats[u]) for u in names)
    limit = max(BLOCK_FRAMES, total / MAX_BLOCKS)
    groups: list[list[str]] = []
    frames = limit
    for utterance in names:
        if frames >= limit:
            groups.append([])
            frames = 0.0
        groups[-1].append(utterance)
        frames += len(feats[utterance])
    named = speakers or {}
    return [
        Block({u: feats[u] for u in g}, {u: texts[u] for u in g}, speakers={u: named[u] for u in g if u in named})
        for g in groups
    ]


class Workers:
    """Maps functions over blocks in this process (jobs = 1) or in `jobs` others. Use as a context manager.

    Other processes are started afresh ("spawn"), so a script that uses them needs `if __name__ == "__main__":`.
    """

    def __init__(self, blocks: Sequence[Block], jobs: int = 1) -> None:
        if jobs < 1:
            raise ValueError(f"jobs = {jobs}: give at least 1")
        self._num_blocks = len(blocks)
        self._own = list(enumerate(blocks)) if jobs == 1 else []
        self._workers: list[Worker] = []
        if jobs > 1:
            try:
                for first in range(min(jobs, len(blocks))):
                    share = [(i, blocks[i]) for i in range(first, len(blocks), jobs)]
                    start_worker(self._workers, _serve).connection.send(share)
            except BaseException:
                end_workers(self._workers)
                raise

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_workers(self._workers, PATIENCE_SECONDS if kind is None else 0.0)

    def map(self, function: Callable[..., Result], *arguments: Any) -> list[Result]:
        """function(block, *arguments) of all blocks, in their order. Changes that it makes to a block persist.

        Raises:
            RuntimeError: the function failed in another process (the message has its traceback).
            WorkerDied: a process died.
        """
        results: dict[int, Result] = {i: function(block, *arguments) for i, block in self._own}
        for worker in self._workers:
            _send(worker, (function, arguments))
        for worker in self._workers:
            results |= _receive(worker)
        return [results[i] for i in range(self._num_blocks)]


def _send(worker: Worker, request: Any) -> None:
    process = worker.process
    try:
        worker.connection.send(request)
    except BrokenPipeError as error:
        raise _died(process) from error


def _receive(worker: Worker) -> dict[int, Any]:
    process = worker.process
    try:
        results, failure = worker.connection.recv()
    except EOFError as error:
        process.join(timeout=1.0)
        wait_for_reason()
        raise _died(process) from error
    if failure:
        raise RuntimeError(f"alignment process {process.pid} failed:\n{failure}")
    return dict(results)


def _died(process: BaseProcess) -> WorkerDied:
    return WorkerDied(
        f"alignment process {process.pid} has died (exit code {process.exitcode}): out of memory? Finished work is"
        " saved; run it again, with fewer processes if memory was short"
    )


def _serve(connection: Connection) -> None:
    """Main function of the other process: receive blocks, then answer requests until the pipe closes."""
    try:
        share: list[tuple[int, Block]] = connection.recv()
        while True:
            function, arguments = connection.recv()
            try:
                answer = ([(i, function(block, *arguments)) for i, block in share], "")
            except Exception:  # raised in the parent process
                answer = ([], traceback.format_exc())
            connection.send(answer)
    except (EOFError, BrokenPipeError):
        return  # the parent has closed its end: the work is done
