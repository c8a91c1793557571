"""Manifests and Shar shards at URLs, which lhotse reads in order, without a copy on disk."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lhotse.serialization import IOBackend, get_current_io_backend, get_default_io_backend, set_current_io_backend

from murmur.speech.corpus.remote import is_remote, location, opened


class RemoteIO(IOBackend):  # type: ignore[misc]  # lhotse has no types
    """Opens URLs as `opened` does, and other names as lhotse does."""

    def open(self, identifier: str | Path, mode: str) -> Any:
        """An open file; one that is packed by gzip is unpacked, as by lhotse."""
        path = location(identifier)
        if not is_remote(path):
            return get_default_io_backend().open(identifier, mode)
        file = opened(path)
        unpacked = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
        return unpacked if "b" in mode else io.TextIOWrapper(unpacked, "utf-8")


@contextmanager
def lhotse_reads(path: Path) -> Iterator[None]:
    """Context in which lhotse reads URLs, if the path is one."""
    if not is_remote(path):
        yield
        return
    before = get_current_io_backend()
    set_current_io_backend(RemoteIO())
    try:
        yield
    finally:
        set_current_io_backend(before)
