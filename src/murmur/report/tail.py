"""A growing file: its new lines, without reading the old ones again."""

from __future__ import annotations

import os
from pathlib import Path

from murmur.core.plain_files import plain_file

AT_ONCE = 4_000_000  # bytes


class Tail:
    """Whole lines of a file in the order in which they were appended; an incomplete line waits for its end.

    A file that was replaced or has become shorter is read from its beginning; `begun` counts these restarts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begun = 0
        self.read_bytes, self.size_bytes = 0, 0
        self._inode = -1
        self._rest = b""

    def lines(self) -> list[bytes]:
        """New lines, of at most AT_ONCE bytes; empty if nothing was added or there is no file yet.

        Raises:
            NotPlainFile: a FIFO or another thing lies in the place of the file.
        """
        try:
            file = plain_file(self.path)
        except FileNotFoundError:
            return []
        with file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode or found.st_size < self.read_bytes:
                self._inode, self.read_bytes, self._rest = found.st_ino, 0, b""
                self.begun += 1
            file.seek(self.read_bytes)
            new = file.read(AT_ONCE)
        self.read_bytes += len(new)
        self.size_bytes = max(found.st_size, self.read_bytes)
        *whole, self._rest = (self._rest + new).split(b"\n")
        return whole

    @property
    def behind(self) -> bool:
        """True if the file has unread content."""
        return self.read_bytes < self.size_bytes
