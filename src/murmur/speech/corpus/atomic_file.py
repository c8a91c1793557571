"""Text files that appear complete: written under another name and then renamed."""

from __future__ import annotations

import os
from pathlib import Path


def write_text_whole(path: Path, text: str) -> None:
    """Write a UTF-8 file in place of the existing one, which stays unchanged if the write is cut off.

    Raises:
        OSError: the file cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
