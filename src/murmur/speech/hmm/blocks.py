"""A corpus of usable utterances, cut into blocks that each stay in one process, and functions mapped over all blocks.

The cut depends on the corpus alone, not on the number of processes, and results come in the order of the blocks, so
sums have the same bits for any number of processes. The library holds the interpreter lock and its graphs cannot be
pickled, hence processes that keep their graphs.

Shapes: T frames, F features.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, TypeVar

import kaldifst
import numpy as np
from numpy.typing import NDArray

from murmur.core.counted import counted
from murmur.execution.workers import PATIENCE_SECONDS, Worker, WorkerDied, end_workers, start_worker, wait_for_reason
from murmur.speech.hmm.mixtures import FloatArray
from murmur.speech.hmm.model import Projection, adapt, project
from murmur.speech.hmm.topology import shortest_words
from murmur.speech.hmm.tree import IntArray
from murmur.speech.lexicon.lexicon import Lang

Features = Mapping[str, NDArray[np.float32]]
MAX_LOST = 0.01


@dataclass(frozen=True)
class Material:
    """Usable utterances, and the reasons why others are not.

    Attributes:
        feats: {utterance: (T, F) features}.
        texts: {utterance: transcript}.
        lost: {utterance: reason}.
    """

    feats: dict[str, NDArray[np.float32]]
    texts: dict[str, str]
    lost: dict[str, str]

    def lost_with(self, failed: Mapping[str, str], most: float = MAX_LOST) -> dict[str, str]:
        """The lost utterances and those that failed later, with reasons.

        Raises:
            ValueError: they are more than the fraction `most` of all; names the first ten.
        """
        lost, total = {**self.lost, **failed}, len(self.feats) + len(self.lost)
        if len(lost) > most * total:
            named = "; ".join(f"{u} {reason}" for u, reason in sorted(lost.items())[:10])
            raise ValueError(
                f"{len(lost)} of {counted(total, 'utterance')} cannot be used, more than {100 * most:g} %: {named}"
                f"{'; ...' if len(lost) > 10 else ''}. Repair the data, or leave these utterances out"
            )
        return lost


def check_material(lang: Lang, feats: Features, texts: Mapping[str, str], dim: int | None = None) -> Material:
    """Select usable utterances: those with features, transcript, words of the lexicon, finite values and at least as
    many frames as states. `dim` is the number of columns of features; None for that of the first utterance.

    Raises:
        ValueError: features have another number of columns; the message names the utterance.
    """
    if dim is None:
        dim = next((x.shape[1] for _, x in sorted(feats.items()) if x.ndim == 2), 0)
    shortest = shortest_words(lang)
    material = Material({}, {}, {})
    for utterance in sorted(feats.keys() | texts.keys()):
        reason = _why_not(lang, shortest, feats.get(utterance), texts.get(utterance))
        if reason:
            material.lost[utterance] = reason
            continue
        if feats[utterance].shape[1] != dim:
            raise ValueError(f"utterance {utterance} has {feats[utterance].shape[1]} features, {dim} are needed")
        material.feats[utterance], material.texts[utterance] = feats[utterance], texts[utterance]
    return material


def usable(lang: Lang, feats: Features, texts: Mapping[str, str]) -> Material:
    """The usable part of a corpus. Raises ValueError if it is empty or less than 99 % of it."""
    material = check_material(lang, feats, texts)
    material.lost_with({})
    if not material.feats:
        raise ValueError("no utterance can be used: there is none")
    return material


def _why_not(lang: Lang, shortest: Mapping[int, int], feats_TF: NDArray | None, text: str | None) -> str:
    """Reason why an utterance cannot be used; empty if it can."""
    if feats_TF is None or text is None:
        return "has no features" if feats_TF is None else "has no transcript"
    if feats_TF.ndim != 2:
        return f"has features of shape {feats_TF.shape} in place of (frames, features)"
    missing = lang.unknown_words(text)
    if missing:
        return f"has words outside the lexicon: {' '.join(missing)}"
    if not text.split():
        return "has an empty transcript"
    if not np.isfinite(feats_TF).all():
        return f"has {int((~np.isfinite(feats_TF)).any(1).sum())} frames that are not finite"
    needed = sum(shortest[word] for word in lang.word_ids(text))
    return f"has {len(feats_TF)} frames but its states need {needed}" if len(feats_TF) < needed else ""


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
            with _death_told(worker):
                worker.connection.send((function, arguments))
        for worker in self._workers:
            with _death_told(worker):
                found, failure = worker.connection.recv()
            if failure:
                raise RuntimeError(f"alignment process {worker.process.pid} failed:\n{failure}")
            results |= found
        return [results[i] for i in range(self._num_blocks)]

    def gather(self, function: Callable[..., Mapping[str, Result]], *arguments: Any) -> dict[str, Result]:
        """The entries of the mappings that a function gives for all blocks."""
        return {name: value for found in self.map(function, *arguments) for name, value in found.items()}


@contextmanager
def _death_told(worker: Worker) -> Iterator[None]:
    try:
        yield
    except (BrokenPipeError, EOFError) as error:
        worker.process.join(timeout=1.0)
        wait_for_reason()
        raise WorkerDied(
            f"alignment process {worker.process.pid} has died (exit code {worker.process.exitcode}): out of memory?"
            " Finished work is saved; run it again, with fewer processes if memory was short"
        ) from error


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
