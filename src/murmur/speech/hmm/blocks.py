"""A corpus of usable utterances, cut into blocks, and functions mapped over all blocks.

The cut depends on the corpus alone, not on the number of processes, and results come in the order of the blocks, so
sums have the same bits for any number of processes and any engine.

A task of a worker is a function of a block on disk, the present alignments and transforms, and a model. Workers keep
what they made of a block, such as its training graphs, which cannot be pickled; another one can take its place.

Shapes: T frames, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self, TypeVar

import kaldifst
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from murmur.core.counted import counted
from murmur.execution.executors import Engine, Jobs, WorkerPool, engine_of
from murmur.execution.processes import at_places, bar_of
from murmur.execution.stored_arrays import StoredArray, folder_of
from murmur.execution.workers import WorkerDied
from murmur.speech.hmm.mixtures import FloatArray
from murmur.speech.hmm.model import Projection, adapt, project
from murmur.speech.hmm.topology import shortest_words
from murmur.speech.hmm.tree import IntArray, Tree
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
        graphs: training graphs of the tree below.
        tree: phones and tree that the graphs are of; None before there are any.
        tids: current alignments; an utterance that could not be aligned is absent.
        speakers: {utterance: speaker}; empty where no speaker is adapted.
        transforms: {speaker: W (D, D + 1)} of adapted speakers.
    """

    feats: Mapping[str, NDArray[np.float32]]
    texts: Mapping[str, str]
    graphs: dict[str, kaldifst.StdVectorFst] = field(default_factory=dict)
    tree: tuple[Lang, Tree] | None = None
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
        Block(
            {u: np.ascontiguousarray(feats[u]) for u in g},  # sums follow the order in memory
            {u: texts[u] for u in g},
            speakers={u: named[u] for u in g if u in named},
        )
        for g in groups
    ]


Given = tuple["StoredBlock", dict[str, IntArray], Mapping[str, FloatArray]]


@dataclass(frozen=True)
class StoredBlock:
    """A block on disk: its features end to end in one array, and what names them.

    Attributes:
        number: place of the block in the corpus.
        folder: folder of all blocks of the corpus.
        lengths: number of frames of each utterance.
    """

    number: int
    folder: str
    feats: StoredArray
    lengths: tuple[int, ...]
    texts: Mapping[str, str]
    speakers: Mapping[str, str]

    @staticmethod
    def write(block: Block, number: int, folder: Path) -> StoredBlock:
        feats = StoredArray.write(folder / f"{number:05}.npy", np.concatenate(list(block.feats.values())))
        texts = {utterance: block.texts[utterance] for utterance in block.feats}
        lengths = tuple(map(len, block.feats.values()))
        return StoredBlock(number, str(folder), feats, lengths, texts, block.speakers)

    def read(self) -> Block:
        """The block, without graphs and alignments. Raises UnfitWorker if its file is not there, or another one."""
        parts = np.split(self.feats.read(), np.cumsum(self.lengths)[:-1])
        feats = {u: part.copy() for u, part in zip(self.texts, parts, strict=True)}
        return Block(feats, self.texts, speakers=self.speakers)


@lru_cache(maxsize=1)  # the blocks of another corpus make room
def _blocks_of(_folder: str) -> dict[int, Block]:
    """The blocks that this process keeps, by number, the last one used at the end."""
    return {}


def _mapped(function: Callable[..., Any], arguments: Sequence[Any], most: int) -> Callable[[Given], Any]:
    return partial(_applied, function, arguments, most)


def _applied(
    function: Callable[..., Result], arguments: Sequence[Any], most: int, given: Given
) -> tuple[Result, Any, Any]:
    """The function's result, and the block's alignments and transforms if the function has replaced them.

    The process keeps the last `most` blocks.
    """
    stored, tids, transforms = given
    known = _blocks_of(stored.folder)
    block = known.pop(stored.number, None) or stored.read()
    known[stored.number] = block
    if len(known) > most:
        del known[next(iter(known))]
    block.tids, block.transforms = tids, transforms
    result = function(block, *arguments)
    changed = None if block.transforms is transforms else block.transforms
    return result, None if block.tids is tids else block.tids, changed


class Workers:
    """Maps functions over blocks in this process (jobs = 1), or in those of an engine. Use as a context manager.

    Other processes are started afresh ("spawn"), so a script that uses them needs `if __name__ == "__main__":`.
    """

    def __init__(self, blocks: Sequence[Block], jobs: Jobs = 1) -> None:
        self._blocks = list(blocks)
        self._engine: Engine = engine_of(jobs)
        self._stored: list[StoredBlock] = []
        self._memory_bytes = 0

    def __enter__(self) -> Self:
        self._open = ExitStack()
        if self._engine.is_this_process:
            return self
        with ExitStack() as opened:
            folder = opened.enter_context(folder_of(self._engine, "blocks"))
            self._stored = [StoredBlock.write(block, n, folder) for n, block in enumerate(self._blocks)]
            self._memory_bytes = 2 * max((Path(each.feats.path).stat().st_size for each in self._stored), default=0)
            self._pool: WorkerPool = opened.enter_context(self._engine.open())
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def map(self, function: Callable[..., Result], *arguments: Any) -> list[Result]:
        """function(block, *arguments) of all blocks, in their order.

        The function may replace a block's alignments and transforms, and make its graphs; other changes may be lost.

        Raises:
            Exception: the function raised it in another process, whose traceback is added as a note.
            WorkerDied: every process that had a block died; names the block.
        """
        if self._engine.is_this_process:
            return [function(block, *arguments) for block in self._blocks]
        inputs = [(stored, b.tids, b.transforms) for stored, b in zip(self._stored, self._blocks, strict=True)]
        found: list[Result] = []
        share = -(-len(inputs) // self._pool.width)
        opened = partial(_mapped, function, arguments, 2 * share)  # with room for blocks of slower workers
        results = at_places(self._pool, opened, inputs, self._memory_bytes)
        console = Console(stderr=True)
        hidden = not (self._engine.progress and console.is_terminal)
        with closing(results), bar_of(console=console, disable=hidden, transient=True) as bar:
            for block, result in zip(self._blocks, bar.track(results, len(inputs), description="blocks"), strict=True):
                if isinstance(result, WorkerDied):
                    raise self._lost(len(found), block) from result
                done, tids, transforms = result
                found.append(done)
                block.tids = block.tids if tids is None else tids
                block.transforms = block.transforms if transforms is None else transforms
        return found

    def here(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call function(block, *arguments), which changes alignments or transforms alone, in this process."""
        for block in self._blocks:
            function(block, *arguments)

    @property
    def alignments(self) -> dict[str, IntArray]:
        """The present alignments of all blocks."""
        return {utterance: tids for block in self._blocks for utterance, tids in block.tids.items()}

    def gather(self, function: Callable[..., Mapping[str, Result]], *arguments: Any) -> dict[str, Result]:
        """The entries of the mappings that a function gives for all blocks."""
        return {name: value for found in self.map(function, *arguments) for name, value in found.items()}

    def _lost(self, number: int, block: Block) -> WorkerDied:
        names = sorted(block.texts)
        return WorkerDied(
            f"every worker has died that had block {number + 1} of {len(self._blocks)} (utterances {names[0]} to"
            f" {names[-1]}): out of memory? Finished work is saved; run it again, with fewer processes if memory was"
            " short"
        )
