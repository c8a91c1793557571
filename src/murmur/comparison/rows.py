"""Rows of JSON in a file, one per line, each on disk before the next one begins; a line cut short is repaired.

A row has a `digest` of everything that determines it. A program that finds a row of its digest need not make it again.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from murmur.core.plain_files import UNREADABLE, open_plain, read_plain
from murmur.core.whole_files import FinishedLines

Row = dict[str, Any]


class DamagedRows(ValueError):
    """A line other than the last one is unreadable: the file was changed from outside."""


def digest_of(content: object) -> str:
    """Sixteen hexadecimal digits of a value in JSON's terms."""
    return blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()


class Rows:
    """The rows of a file, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Row]:
        """{digest: row}; the later of two rows with one digest. An unfinished last line is skipped.

        Raises:
            DamagedRows: another line is not a row; the message names it.
        """
        if not self.path.exists():
            return {}
        found: dict[str, Row] = {}
        for number, line in enumerate(FinishedLines(self.path), start=1):
            try:
                row = json.loads(line)
                found[str(row["digest"])] = row
            except UNREADABLE as error:
                raise DamagedRows(
                    f"{self.path}, line {number}: expected an object with a digest, found {line[:60]!r} ({error});"
                    " delete that line, its run is then made again"
                ) from error
        return found

    def append(self, row: Mapping[str, Any]) -> None:
        """Write a row after the last whole one, and wait until it is on disk."""
        line = (json.dumps(_finite(row), ensure_ascii=False) + "\n").encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = open_plain(self.path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed: another program may write a row
            os.lseek(file, _end_of_last_whole_line(self.path), os.SEEK_SET)
            os.truncate(file, os.lseek(file, 0, os.SEEK_CUR))
            while line:
                line = line[os.write(file, line) :]
            os.fsync(file)
        finally:
            os.close(file)


def _end_of_last_whole_line(path: Path) -> int:
    return read_plain(path).rfind(b"\n") + 1


def _finite(value: Any) -> Any:
    """The value with numbers that are not finite replaced by null, since JSON has none."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
