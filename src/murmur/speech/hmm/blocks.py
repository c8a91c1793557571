"""A corpus cut into blocks on disk, and functions mapped over all blocks.

The cut depends on the corpus alone, not on the number of processes, and results come in the order of the blocks, so
sums have the same bits for any number of processes and any engine.

A block names utterances and the rows of their features in shards. A task is a function of a block and a model. Its
alignments lie beside the block, in a file of the pass that made them, which appears complete. So any worker can do any
block, a task that is repeated writes the same bits, and no process holds the corpus.

Shapes: T frames, F features, U utterances, N frames of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from murmur.core.whole_files import appearing
from murmur.execution.executors import Jobs, WorkerPool, engine_of
from murmur.execution.processes import bar_of, ordered
from murmur.execution.stored_arrays import folder_of
from murmur.execution.tasks import unfit
from murmur.execution.workers import WorkerDied
from murmur.speech.features.by_utterance import part_of
from murmur.speech.features.derived import DerivedFeatures, shape_of
from murmur.speech.features.feature_store import ShardRows
from murmur.speech.hmm.material import Features
from murmur.speech.hmm.mixtures import FloatArray
from murmur.speech.hmm.model import Projection, adapt, project
from murmur.speech.hmm.storage import StoredAlignments, kept_alignments, read_with_header, write_with_header
from murmur.speech.hmm.tree import IntArray

BLOCK_FRAMES = 25_000
BLOCK_FORMAT, PATHS_FORMAT = "murmur block 1", "murmur alignments of a block 1"
VALUE_BYTES = 8  # of a value of features in sums
Result = TypeVar("Result")


@dataclass
class Block:
    """Some utterances, as a pass sees them.

    Attributes:
        feats: {utterance: (T, F) features}, or scores by pdf, read as they are taken.
        texts: {utterance: transcript}.
        speakers: {utterance: speaker}; empty where no speaker is adapted.
        tids: current alignments, in the order of `texts`; an utterance that could not be aligned is absent.
        transforms: {speaker: W (D, D + 1)} of adapted speakers.
        stem: path of the block's files without their ends; None for a block that lies in memory.
    """

    feats: Features
    texts: Mapping[str, str]
    speakers: Mapping[str, str] = field(default_factory=dict)
    tids: Mapping[str, IntArray] = field(default_factory=dict)
    transforms: Mapping[str, FloatArray] = field(default_factory=dict)
    stem: Path | None = None

    def frames(self, utterance: str, projection: Projection | None) -> NDArray[np.float32]:
        """(T, D) the input of mixtures: projected frames, adapted to the speaker if the block holds a transform."""
        return adapt(self.transforms.get(self.speakers.get(utterance, "")), project(projection, self.feats[utterance]))

    def log_determinant(self, utterance: str) -> float:
        """ln |det A| of the speaker's transform [A b], which belongs to the log-likelihood of a frame."""
        transform = self.transforms.get(self.speakers.get(utterance, ""))
        return 0.0 if transform is None else float(np.linalg.slogdet(transform[:, :-1])[1])


def cut_into_blocks(
    feats: Features,
    texts: Mapping[str, str],
    speakers: Mapping[str, str] | None = None,
    tids: Mapping[str, IntArray] | None = None,
) -> Iterator[Block]:
    """Blocks of about equally many frames, utterances in byte order of their names; `tids` are their alignments."""
    group: list[str] = []
    frames = 0
    named, aligned = speakers or {}, {} if tids is None else tids

    def block() -> Block:
        own, paths = {u: named[u] for u in group if u in named}, {u: aligned[u] for u in group if u in aligned}
        return Block(part_of(feats, group), {u: texts[u] for u in group}, own, paths)

    for utterance in sorted(feats):
        if frames >= BLOCK_FRAMES:
            yield block()
            group, frames = [], 0
        group.append(utterance)
        frames += shape_of(feats, utterance)[0]
    if group:
        yield block()


def write_block(block: Block, stem: Path) -> DerivedFeatures:
    """Write the list of a block's utterances, with the places of their features; return the features at these places.

    Features that lie in no store are written as a shard beside it.
    """
    feats = block.feats
    if not isinstance(feats, DerivedFeatures) or not feats.stored:
        feats = _written(feats, stem)
    header, arrays = feats.plain()
    texts, speakers = list(block.texts.values()), [block.speakers.get(u) for u in block.texts]
    content: dict[str, Any] = {"format": BLOCK_FORMAT, **header, "texts": texts, "speakers": speakers}
    write_with_header(stem.with_suffix(".npz"), content, arrays, appearing)
    return feats


def _written(feats: Features, stem: Path) -> DerivedFeatures:
    """The same features as rows of a shard of the block's number."""
    arrays = [np.ascontiguousarray(feats_TF) for feats_TF in feats.values()]  # sums follow the order in memory
    joined_NF = np.concatenate(arrays)
    np.save(stem.with_suffix(".feats.npy"), joined_NF, allow_pickle=False)
    lengths = [len(feats_TF) for feats_TF in arrays]
    firsts, number = np.cumsum([0, *lengths]).tolist(), int(stem.name)
    places = {u: (number, first, n) for u, first, n in zip(feats, firsts, lengths, strict=False)}
    return DerivedFeatures(ShardRows(stem.parent, places, {number: joined_NF.shape}))


def read_block(stem: Path) -> Block:
    """A block without alignments. Raises UnfitWorker if this process does not see its files."""
    try:
        header, arrays = read_with_header(stem.with_suffix(".npz"), BLOCK_FORMAT)
    except (OSError, ValueError) as error:
        raise unfit(f"cannot read a block that the command has written: {error}") from error
    names = header["utterances"]
    speakers = {u: speaker for u, speaker in zip(names, header["speakers"], strict=True) if speaker is not None}
    feats = DerivedFeatures.of_plain(header, arrays)
    return Block(feats, dict(zip(names, header["texts"], strict=True)), speakers, stem=stem)


def _paths_file(stem: Path, number: int) -> Path:
    """The file of a block's alignments that a pass has made, by the number of the pass."""
    return stem.with_name(f"{stem.name}-{number:05}.npz")


def write_paths(block: Block, path: Path) -> None:
    """Write a block's alignments as a whole."""
    lengths = [len(block.tids[u]) if u in block.tids else -1 for u in block.texts]
    tids_N = np.concatenate([np.zeros(0, np.int32), *(block.tids[u] for u in block.texts if u in block.tids)])
    arrays: dict[str, NDArray] = {"lengths": np.array(lengths, np.int64), "tids": tids_N.astype(np.int32)}
    write_with_header(path, {"format": PATHS_FORMAT}, arrays, appearing)


def read_paths(names: Iterable[str], path: Path) -> dict[str, IntArray]:
    """A block's alignments. Raises UnfitWorker if this process does not see their file."""
    try:
        _, arrays = read_with_header(path, PATHS_FORMAT)
    except (OSError, ValueError) as error:
        raise unfit(f"cannot read alignments that a worker has written: {error}") from error
    lengths = arrays["lengths"]
    parts = iter(np.split(arrays["tids"], np.cumsum(lengths[lengths >= 0])[:-1]) if (lengths >= 0).any() else [])
    return {u: next(parts) for u, length in zip(names, lengths.tolist(), strict=True) if length >= 0}


class BlockName(NamedTuple):
    """The first and last utterance of a block, its number of frames, and its speakers, which the command holds."""

    first: str
    last: str
    frames: int
    speakers: tuple[str, ...]


class Given(NamedTuple):
    """The input of a task.

    Attributes:
        stem: path of the block's files without their ends.
        aligned: number of the pass that made the present alignments; 0 if there are none.
        number: number of the present pass.
        transforms: present transforms of the block's speakers.
    """

    stem: str
    aligned: int
    number: int
    transforms: Mapping[str, FloatArray]


def _mapped(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[Given], Any]:
    return partial(_applied, function, arguments)


def _applied(function: Callable[..., Result], arguments: tuple[Any, ...], given: Given) -> tuple[Result, bool]:
    """The function's result, and True if it has replaced the block's alignments, which are on disk then."""
    stem = Path(given.stem)
    block = read_block(stem)
    block.transforms = given.transforms
    if given.aligned:
        block.tids = read_paths(block.texts, _paths_file(stem, given.aligned))
    before = block.tids
    result = function(block, *arguments)
    if block.tids is before:
        return result, False
    write_paths(block, _paths_file(stem, given.number))
    return result, True


class Workers:
    """Maps functions over blocks in this process (jobs = 1), or in those of an engine. Use as a context manager.

    Other processes are started afresh ("spawn"), so a script that uses them needs `if __name__ == "__main__":`.

    Attributes:
        blocks: the blocks in their order.
        transforms: {speaker: W (D, D + 1)} of adapted speakers, which the blocks of the next passes hold.
    """

    def __init__(self, blocks: Iterable[Block], jobs: Jobs = 1) -> None:
        self.blocks: list[BlockName] = []
        self.transforms: Mapping[str, FloatArray] = {}
        self._given, self._engine = blocks, engine_of(jobs)
        self._aligned: list[int] = []  # the pass that made the alignments of each block
        self._passes = 1
        self._memory_bytes = 0

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self._folder: Path = opened.enter_context(folder_of(self._engine, "blocks")).absolute()
            for number, block in enumerate(self._given):
                self._write(number, block)
            self._given = ()
            self._pool: WorkerPool | None = None
            if not self._engine.is_this_process:
                self._pool = opened.enter_context(self._engine.open())
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _write(self, number: int, block: Block) -> None:
        feats, names = write_block(block, self._stem(number)), list(block.texts)
        shapes = [shape_of(feats, u) for u in names]
        frames = sum(shape[0] for shape in shapes)
        self.blocks.append(BlockName(names[0], names[-1], frames, tuple(dict.fromkeys(block.speakers.values()))))
        self._memory_bytes = max(self._memory_bytes, 2 * VALUE_BYTES * frames * shapes[0][1])
        self._aligned.append(1 if block.tids else 0)
        if block.tids:
            write_paths(block, _paths_file(self._stem(number), 1))

    def _stem(self, number: int) -> Path:
        return self._folder / f"{number:05}"

    def stream(self, function: Callable[..., Result], *arguments: Any) -> Iterator[Result]:
        """function(block, *arguments) of all blocks, in their order; all of them are to be taken.

        The function may replace a block's alignments; other changes are lost.

        Raises:
            Exception: the function raised it in another process, whose traceback is added as a note.
            WorkerDied: every process that had a block died; names the block.
        """
        self._passes += 1
        tools = partial(_mapped, function, arguments)
        inputs = (self._input(number) for number in range(len(self.blocks)))
        if self._pool is None:
            for number, (result, aligned) in enumerate(map(tools(), inputs)):
                self._done(number, aligned)
                yield result
            return
        results = ordered(self._pool, tools, inputs, memory_bytes=self._memory_bytes)
        console = Console(stderr=True)
        hidden = not (self._engine.progress and console.is_terminal)
        with closing(results), bar_of(console=console, disable=hidden, transient=True) as bar:
            for number, answer in enumerate(bar.track(results, len(self.blocks), description="blocks")):
                if isinstance(answer, WorkerDied):
                    raise self._lost(number) from answer
                result, aligned = answer
                self._done(number, aligned)
                yield result

    def _input(self, number: int) -> Given:
        own = {s: self.transforms[s] for s in self.blocks[number].speakers if s in self.transforms}
        return Given(str(self._stem(number)), self._aligned[number], self._passes, own)

    def _done(self, number: int, aligned: bool) -> None:
        """Note that a task has replaced the alignments of a block, and remove the file of the earlier ones."""
        if aligned:
            _paths_file(self._stem(number), self._aligned[number]).unlink(missing_ok=True)
            self._aligned[number] = self._passes

    def map(self, function: Callable[..., Result], *arguments: Any) -> list[Result]:
        """The results of `stream` in a list."""
        return list(self.stream(function, *arguments))

    def sum(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The sum of the results of `stream`, which are held one at a time."""
        return reduce(add, self.stream(function, *arguments))

    def gather(self, function: Callable[..., Mapping[str, Result]], *arguments: Any) -> dict[str, Result]:
        """The entries of the mappings that a function gives for all blocks."""
        return {name: value for found in self.stream(function, *arguments) for name, value in found.items()}

    @property
    def alignments(self) -> StoredAlignments:
        """The present alignments of all blocks, in a file of their own, which stays as long as they are in use."""
        return kept_alignments(self._paths())

    def _paths(self) -> Iterator[tuple[str, IntArray]]:
        for number, aligned in enumerate(self._aligned):
            if aligned:
                stem = self._stem(number)
                yield from read_paths(read_block(stem).texts, _paths_file(stem, aligned)).items()

    def _lost(self, number: int) -> WorkerDied:
        block = self.blocks[number]
        return WorkerDied(
            f"every worker has died that had block {number + 1} of {len(self.blocks)} (utterances {block.first} to"
            f" {block.last}): out of memory? Finished work is saved; run it again, with fewer processes if memory was"
            " short"
        )
