"""Staging: whole shards of remote stores in a local folder of bounded size, from which the least recently used leave.

A shard lies in a folder named by a digest of its checksums, so that all stores, runs and learners of a host share it.
It is fetched beside that name, checked, and renamed: it is whole or absent.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from murmur.core.whole_files import alone, atomic_folder, remove_whole, tidy
from murmur.speech.corpus.errors import CorpusError, TransferError
from murmur.speech.corpus.remote import BLOCK_BYTES, opened

log = logging.getLogger(__name__)
THREADS = 8  # transfers at the same time
Entry = Mapping[str, Any]  # of a shard in its manifest


@dataclass(frozen=True)
class Staging:
    """Local copies of the shards in use, for training from s3://, gs:// or https://.

    Attributes:
        folder: local folder, shared by all learners of a host; it may be deleted when no run uses it.
        gigabytes: largest size of the folder; it should hold the shards that the learners of a host use.
    """

    folder: Path = Path("runs/staged")
    gigabytes: float = 50.0

    def shard(self, source: Path, entry: Entry) -> Path:
        """The local folder of the files of a shard, fetched from the folder `source` unless it is there.

        Raises:
            CorpusError: a file is missing, or the shard is larger than the folder may be.
            TransferError: the transfer goes on failing, or a file has another checksum, fetched twice.
        """
        out = self._place(entry)
        try:
            _touch(out)
        except FileNotFoundError:
            self._fetch(source, entry["files"], out)
            with suppress(FileNotFoundError):  # it may have left already
                _touch(out)
        return out

    def holds(self, entry: Entry) -> bool:
        """True if a shard is staged."""
        return self._place(entry).is_dir()

    def bring(self, source: Path, entries: Sequence[Entry]) -> None:
        """Fetch the shards that are absent, several at a time."""
        absent = [entry for entry in entries if not self.holds(entry)]
        if absent:
            with ThreadPoolExecutor(THREADS, "staging") as threads:
                list(threads.map(partial(self.shard, source), absent))

    def _place(self, entry: Entry) -> Path:
        content = "".join([entry["name"], *(checksum for _, checksum in entry["files"].values())])
        return self.folder / hashlib.sha256(content.encode()).hexdigest()[:24]

    def _fetch(self, source: Path, files: Mapping[str, tuple[int, str]], out: Path) -> None:
        with alone(out):
            if out.is_dir():  # another learner has fetched it
                return
            with atomic_folder(out) as new:
                self._reserve(new, {name: size for name, (size, _) in files.items()})
                for name, (size, checksum) in files.items():
                    with (new / name).open("r+b") as file:
                        fetch(source / name, size, checksum, file)

    def _reserve(self, new: Path, sizes: Mapping[str, int]) -> None:
        """Make files of the final sizes, empty on disk, after shards have left that would not fit beside them."""
        most_bytes, wanted = self.gigabytes * 1e9, sum(sizes.values())
        with alone(self.folder / "room"):
            for left in sorted(self.folder.glob(".*.new-*")):  # of killed learners
                if left.name.split(".")[1] != new.name.split(".")[1]:
                    tidy(self.folder / left.name.split(".")[1])
            held, total = [], wanted
            for folder in self.folder.iterdir():
                with suppress(FileNotFoundError, NotADirectoryError):  # renamed by another learner; a lock
                    size = sum(path.stat().st_size for path in folder.iterdir())
                    held.append((folder.stat().st_mtime_ns, size, folder))
                    total += size
            for _, size, folder in sorted(held):
                if total > most_bytes and not folder.name.startswith("."):
                    remove_whole(folder)
                    total -= size
            if total > most_bytes:
                raise CorpusError(
                    f"{self.folder} may hold {self.gigabytes:g} GB, and shards of {total / 1e9:.3g} GB are needed at"
                    " the same time: raise task.staging.gigabytes"
                )
            for name, size in sizes.items():
                with (new / name).open("xb") as file:
                    file.truncate(size)


def _touch(folder: Path) -> None:
    """Mark a folder as used now, by a finer clock than the file system's."""
    now = time.time_ns()
    os.utime(folder, ns=(now, now))


def fetch(source: Path, size: int, checksum: str, out: BinaryIO) -> None:
    """Write the content of a file of this size and SHA-256; a transfer with another one is repeated once.

    No more than `size` bytes are written, whatever the server sends.

    Raises:
        CorpusError: there is no such file.
        TransferError: the transfer goes on failing, or has another checksum twice.
    """
    for _ in range(2):
        found = hashlib.sha256()
        out.seek(0)
        with opened(source) as file:
            while (left := size - out.tell()) > 0 and (block := file.read(min(left, BLOCK_BYTES))):
                found.update(block)
                out.write(block)
            found.update(file.read(1))  # longer than its manifest says
        out.truncate()
        if found.hexdigest() == checksum:
            return
        log.warning("%s has another checksum than its manifest says", source)
    raise TransferError(
        f"{source} has another checksum than its manifest says, fetched twice: prepare the corpus again"
    )


def fetched(source: Path, size: int, checksum: str) -> bytes:
    """The content of a small file, as `fetch` writes it."""
    content = io.BytesIO()
    fetch(source, size, checksum, content)
    return content.getvalue()
