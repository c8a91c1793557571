"""Files to which the learners of a run append: records.jsonl, and trace.json in the format of Chrome traces."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from murmur.core.errors import not_written
from murmur.core.plain_files import open_plain, plain_file
from murmur.core.trace import Span
from murmur.engine.record import Record
from murmur.engine.thinned import WHOLE_SPANS, WHOLE_STEPS, ThinnedRecords, ThinnedSpans


class AppendedFile:
    """File to which a learner appends; those of one host may share it. What comes after `close` is dropped."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._lock = path, threading.Lock()
        self._file: int | None = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def append(self, data: bytes) -> None:
        """Append data, by one write unless the disk accepts less; an error names the file, the bytes and the remedy."""
        left = memoryview(data)
        with self._lock:  # an activity may write while the learner ends, and the number of a closed file is used again
            try:
                while left and self._file is not None:
                    left = left[os.write(self._file, left) :]
            except OSError as error:
                raise not_written(self._path, error, len(data)) from error

    def close(self) -> None:
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)


class JsonLines(AppendedFile):
    """Appends the records of a learner to a file, late steps put together: each line is one append."""

    def __init__(self, path: Path, whole: int = WHOLE_STEPS) -> None:
        super().__init__(path)
        self._thinned, self._adding = ThinnedRecords(whole), threading.Lock()

    def __call__(self, record: Record) -> None:
        self._write(self._thinned.add(record))

    def flush(self) -> None:
        """Write the steps that wait for others to share their line."""
        self._write(self._thinned.rest())

    def _write(self, records: Iterable[Record]) -> None:
        with self._adding:  # activities of a learner may have threads of their own
            for each in records:
                self.append(each.line().encode())

    def close(self) -> None:
        """Write the steps that are left before the file is closed."""
        try:
            self.flush()
        finally:
            super().close()


class ChromeTrace(AppendedFile):
    """Appends the spans of a learner to a Chrome trace (chrome://tracing, Perfetto), late windows left out.

    Its array may stay open, as the format allows.
    """

    def __init__(self, path: Path, every: int = 256, whole: int = WHOLE_SPANS) -> None:
        super().__init__(path)
        self._every, self._lines = every, list[str]()
        self._thinned, self._adding = ThinnedSpans(whole), threading.Lock()

    def __call__(self, span: Span) -> None:
        with self._adding:  # activities of a learner may have threads of their own
            self._take(self._thinned.add(span))
            if len(self._lines) >= self._every:
                self._write()

    def flush(self) -> None:
        with self._adding:
            self._take(self._thinned.rest())
            self._write()

    def _take(self, events: Iterable[Mapping[str, Any]]) -> None:
        self._lines += [json.dumps(event, separators=(",", ":")) + ",\n" for event in events]

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            self.append("".join(lines).encode())


def keep_trace(path: Path, done: int) -> None:
    """Keep the trace of an earlier launch under a name with the minibatches that were `done` at this one's start."""
    if path.is_file() and not path.is_symlink():
        path.replace(path.with_name(f"trace-until-{done}.json"))


def begin_trace(path: Path) -> None:
    """Open the array of a new trace file. One learner calls this before the others write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with plain_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        file.write(b"[\n")


def finish_trace(path: Path) -> None:
    """Close the array. One learner calls this after the others have written."""
    with plain_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
        file.write(b'{"ph":"M","name":"process_name","pid":0,"args":{"name":"learner 0"}}]\n')
