"""Arrays on disk that tasks refer to, in a folder that all workers see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from murmur.execution.executors import Engine
from murmur.execution.tasks import unfit


@dataclass(frozen=True)
class StoredArray:
    """The file of an array, and the digest of its content."""

    path: str
    digest: str

    @staticmethod
    def write(path: Path, array: NDArray) -> StoredArray:
        np.save(path, array, allow_pickle=False)
        return StoredArray(str(path), _digest(array))

    def read(self) -> NDArray:
        """The array. Raises UnfitWorker if this process does not see the file, or sees another one."""
        try:
            found: NDArray = np.load(self.path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise unfit(f"cannot read {self.path}, which the command has written: {error}") from error
        if _digest(found) != self.digest:
            raise unfit(f"sees another {self.path} than the command has written")
        return found


def _digest(array: NDArray) -> str:
    return blake2b(np.ascontiguousarray(array).data, digest_size=16).hexdigest()


@contextmanager
def folder_of(engine: Engine, what: str) -> Iterator[Path]:
    """Context with a folder that the workers of an engine see; it is removed at the end."""
    place = None if engine.is_here else (engine.folder or Path.cwd()).absolute()
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{what}-", dir=place) as folder:
        yield Path(folder)
