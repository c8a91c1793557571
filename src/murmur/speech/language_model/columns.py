"""Sorted tables larger than memory: columns in blocks, external sorting, and joins of sorted tables.

Sorting writes sorted runs that fit into memory and merges them (D. Knuth, The Art of Computer Programming 3, 5.4).
Without a limit of memory there is one run, and no file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TypeVar

import numpy as np

Rows = TypeVar("Rows")
Block = tuple[np.ndarray, ...]  # columns of equal length; the first one is the key
_ROWS = 1 << 16  # of a block: large enough for NumPy, small enough for the cache
_BYTES_A_ROW = 512  # of memory while one block is worked on, with the text of its rows
_BYTES_A_MERGED_ROW = 128
_RUN_SHARE = 5  # a run is held, joined, and sorted: several copies
_FAN_IN = 64  # runs that are merged at a time


class Scratch(ExitStack):
    """Memory for tables, and the folder of what does not fit. Its files have no names, so a killed program leaves none.

    Args:
        memory_bytes: limit of memory; None keeps all tables in memory.
        folder: folder of temporary files; None is that of the system (TMPDIR).
        progress: called with the name of a table, the rows that are done, and all rows, None if they are unknown.

    Attributes:
        rows: rows of a block.
        disk_bytes: size of all temporary files at most; 0 while it is unknown.
    """

    def __init__(
        self,
        memory_bytes: int | None = None,
        folder: Path | None = None,
        progress: Callable[[str, int, int | None], None] | None = None,
    ) -> None:
        super().__init__()
        self._progress, self.disk_bytes = progress, 0
        self.limit, self.folder = memory_bytes, Path(tempfile.gettempdir() if folder is None else folder)
        self.rows = _ROWS if memory_bytes is None else max(1, min(_ROWS, memory_bytes // _BYTES_A_ROW))

    def file(self) -> IO[bytes] | None:
        """A new temporary file; None if all is kept in memory."""
        if self.limit is None:
            return None
        with self.writing():
            return self.enter_context(tempfile.TemporaryFile(dir=self.folder, buffering=0))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Name the temporary files, and the disk that they need, in the error of a full disk."""
        try:
            yield
        except OSError as error:
            size = f" of up to {-(-self.disk_bytes // 10**6)} MB" if self.disk_bytes else ""
            raise OSError(error.errno, error.strerror, f"temporary files{size} in {self.folder}") from error

    def watched(self, blocks: Iterable[Rows], what: str, total: int | None) -> Iterator[Rows]:
        """Yield blocks, and tell the progress."""
        for done, block in enumerate(blocks, 1):
            yield block
            if self._progress is not None:
                self._progress(what, done * self.rows if total is None else min(done * self.rows, total), total)

    def rows_of_each(self, runs: int) -> int:
        """Rows to read at a time of each of several sorted runs."""
        assert self.limit is not None  # else there is one run
        return max(1, min(_ROWS, self.limit // _BYTES_A_MERGED_ROW // runs))

    def is_full(self, size: int) -> bool:
        """True if a run of `size` bytes takes all memory for runs."""
        return self.limit is not None and size * _RUN_SHARE >= self.limit


class Columns:
    """Columns of equal length, appended and read in blocks of `scratch.rows` rows; only the last block is smaller.

    Several tables may share a file, which the first `drop` closes.

    Attributes:
        rows: number of rows.
    """

    def __init__(self, scratch: Scratch, file: IO[bytes] | None = None) -> None:
        self._scratch, self._file = scratch, file or scratch.file()
        self.rows = 0
        self._kept: list[Block] = []  # blocks in memory
        self._places: list[tuple[int, int]] = []  # first byte and rows of blocks in the file
        self._types: list[np.dtype] = []
        self._rest: list[Block] = []  # less than a block

    def append(self, block: Block) -> None:
        """Add rows.

        Raises:
            OSError: the temporary file cannot be written; names the folder.
        """
        self._rest.append(block)
        self.rows += len(block[0])
        if sum(len(each[0]) for each in self._rest) < self._scratch.rows:
            return
        table, rows = joined(self._rest), self._scratch.rows
        whole = len(table[0]) // rows * rows
        for begin in range(0, whole, rows):
            self._keep(_rows(table, begin, begin + rows))
        self._rest = [_rows(table, whole, None)] if whole < len(table[0]) else []

    def extend(self, blocks: Iterable[Block]) -> Columns:
        """Add rows, and return the table."""
        for block in blocks:
            self.append(block)
        self._finish()
        return self

    def blocks(self, rows: int | None = None) -> Iterator[Block]:
        """Yield all rows in blocks; in smaller ones of at most `rows` rows from a file."""
        self._finish()
        yield from self._kept
        for place, count in self._places:
            step = rows or count
            for begin in range(0, count, step):
                yield self._read(place, count, begin, min(begin + step, count))

    def drop(self) -> None:
        """Give memory and disk back."""
        self._kept, self._places, self._rest = [], [], []
        if self._file is not None:
            self._file.close()

    def _finish(self) -> None:
        rest, self._rest = self._rest, []
        if sum(len(each[0]) for each in rest):
            self._keep(joined(rest))

    def _keep(self, block: Block) -> None:
        if self._file is None:
            self._kept.append(block)
            return
        self._types = [column.dtype for column in block]
        with self._scratch.writing():
            self._places.append((self._file.seek(0, os.SEEK_END), len(block[0])))
            for column in block:
                left = np.ascontiguousarray(column).view(np.uint8).data
                while left:
                    left = left[self._file.write(left) :]

    def _read(self, place: int, count: int, begin: int, end: int) -> Block:
        assert self._file is not None  # else there are no places
        columns = []
        for kind in self._types:
            size = (end - begin) * kind.itemsize
            raw = os.pread(self._file.fileno(), size, place + begin * kind.itemsize)
            columns.append(np.frombuffer(raw, dtype=kind))
            place += count * kind.itemsize
        return tuple(columns)


def sorted_by_key(
    blocks: Iterable[Block], scratch: Scratch, combine: Callable[[Block], Block] = lambda block: block
) -> Columns:
    """The rows of all blocks, sorted by key. `combine` makes fewer rows of sorted ones with equal keys."""
    file = scratch.file()
    runs = [Columns(scratch, file).extend([combine(_sorted(run))]) for run in _runs(blocks, scratch)]
    while len(runs) > 1:
        wider = scratch.file()
        groups = [runs[n : n + _FAN_IN] for n in range(0, len(runs), _FAN_IN)]
        merged = [Columns(scratch, wider).extend(map(combine, _merged(group, scratch))) for group in groups]
        runs[0].drop()
        runs = merged
    return runs[0] if runs else Columns(scratch, file)


def _runs(blocks: Iterable[Block], scratch: Scratch) -> Iterator[Block]:
    """Unsorted blocks as large as memory allows."""
    held, size = list[Block](), 0
    for block in blocks:
        if not len(block[0]):
            continue
        held.append(block)
        size += sum(column.nbytes for column in block)
        if scratch.is_full(size):
            run, held, size = joined(held), [], 0
            yield run
    if held:
        yield joined(held)


def _merged(runs: list[Columns], scratch: Scratch) -> Iterator[Block]:
    """Sorted blocks of sorted runs. Rows of equal keys are in one block, in the order of the runs."""
    sources = [run.blocks(scratch.rows_of_each(len(runs))) for run in runs]
    heads = [next(source) for source in sources]
    while heads:
        last = min(head[0][-1] for head in heads)  # rows up to it are final, once all runs have given theirs
        taken = []
        for n, source in enumerate(sources):
            following: Block | None = heads[n]
            while following is not None:
                end = int(np.searchsorted(following[0], last, "right"))
                taken.append(_rows(following, 0, end))
                heads[n] = _rows(following, end, None)
                following = next(source, None) if end == len(following[0]) else None
        yield _sorted(joined(taken))
        going = [n for n, head in enumerate(heads) if len(head[0])]
        heads, sources = [heads[n] for n in going], [sources[n] for n in going]


def sum_equal(block: Block) -> Block:
    """Unique keys of sorted ones, with the sums of their counts."""
    keys, counts = block
    first = np.flatnonzero(changes(keys))
    return keys[first], np.add.reduceat(counts, first)


def summed(blocks: Iterable[Block]) -> Iterator[Block]:
    """Unique keys of a sorted table, with the sums of their counts."""
    filled = (block for block in blocks if len(block[0]))
    return map(sum_equal, grouped(map(sum_equal, filled), lambda keys: keys))


def changes(keys: np.ndarray) -> np.ndarray:
    """Marks each key that differs from the one before it."""
    return np.concatenate([np.ones(min(1, len(keys)), dtype=bool), keys[1:] != keys[:-1]])


def grouped(blocks: Iterable[Block], group_of: Callable[[np.ndarray], np.ndarray]) -> Iterator[Block]:
    """Cut a sorted table between groups of keys: all rows of a group are in one block."""
    held, last = list[Block](), None
    for block in blocks:
        groups = group_of(block[0])
        if held and groups[0] != last:
            yield joined(held)
            held = []
        begin = int(np.searchsorted(groups, groups[-1]))  # of the last group
        if begin:
            yield joined([*held, _rows(block, 0, begin)])
            held = []
        held.append(_rows(block, begin, None))
        last = groups[-1]
    if held:
        yield joined(held)


class SortedLookup:
    """Looks up ascending keys in a sorted table of keys and values, which is read once.

    Args:
        table: blocks of unique keys and their values.
        default: value of a key that is not in the table.
    """

    def __init__(self, table: Iterator[Block], default: float) -> None:
        self._table, self._default, self._head = table, default, next(table, None)

    def __call__(self, keys: np.ndarray) -> np.ndarray:
        """Values of keys, none of which is below one of an earlier call."""
        if self._head is None or not len(keys):
            return np.full(len(keys), self._default)
        values = np.full(len(keys), self._default, dtype=self._head[1].dtype)
        head: Block | None = self._head
        while head is not None:
            self._head = head
            row = np.minimum(np.searchsorted(head[0], keys), len(head[0]) - 1)
            found = head[0][row] == keys
            values[found] = head[1][row[found]]
            head = None if head[0][-1] >= keys[-1] else next(self._table, None)
        return values


def _sorted(block: Block) -> Block:
    if len(block) == 1:
        return (np.sort(block[0]),)
    order = np.argsort(block[0], kind="stable")
    return tuple(column[order] for column in block)


def joined(blocks: list[Block]) -> Block:
    """One block of the rows of several."""
    return blocks[0] if len(blocks) == 1 else tuple(map(np.concatenate, zip(*blocks, strict=True)))


def _rows(block: Block, begin: int, end: int | None) -> Block:
    return tuple(column[begin:end] for column in block)
