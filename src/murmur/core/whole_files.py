"""Files that appear complete: written under another name and then renamed, or read up to their last whole line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from murmur.core.plain_files import plain_file


def name_beside(path: Path, suffix: str = "") -> Path:
    """Return the temporary name of a file: short, since the file's own name may be as long as the system allows."""
    digest = blake2b(os.fsencode(path.name), digest_size=6).hexdigest()
    return path.with_name(f".unfinished-{digest}-{os.getpid()}{suffix}")


@contextmanager
def in_place_of(path: Path, suffix: str = "") -> Iterator[Path]:
    """Provide the name to write a file to, which replaces `path` at the end of the block and is removed after an error.

    What a killed program has left under that name is removed first. A symbolic link stays: the file that it names is
    replaced. A FIFO or a device is written itself, since no file may
    take its place.

    Args:
        path: File to write.
        suffix: Suffix of the temporary name, for writers to which it matters.

    Raises:
        OSError: The file cannot be renamed.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    path = Path(os.path.realpath(path))
    beside = name_beside(path, suffix)
    beside.unlink(missing_ok=True)
    try:
        yield beside
        beside.replace(path)
    finally:
        with suppress(OSError):  # the error of writing says more
            beside.unlink(missing_ok=True)


class FinishedLines:
    """The finished lines of a file that may still grow, as bytes without their line feeds.

    A last line without a line feed is unfinished: it is being written, or its writer was killed. It is no line, even if
    it could be read: `rest` holds it after the iteration.

    Raises:
        NotPlainFile, OSError: As for `open_plain`, at the iteration.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.rest = path, b""

    def __iter__(self) -> Iterator[bytes]:
        self.rest = b""
        with plain_file(self.path) as file:
            for line in file:
                if not line.endswith(b"\n"):
                    self.rest = line
                    return
                yield line[:-1]
