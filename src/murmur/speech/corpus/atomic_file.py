"""Text files that appear complete: written under another name and then renamed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from murmur.speech.corpus.file_errors import naming


def write_text_whole(path: Path, text: str) -> None:
    """Write a UTF-8 file in place of the existing one, which stays unchanged if the write is cut off.

    Raises:
        OSError: the file cannot be written; names it.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path):
            beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        with suppress(OSError):  # the error of writing says more
            beside.unlink(missing_ok=True)
