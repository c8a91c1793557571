"""Text files that appear whole: written under another name and then renamed."""

from __future__ import annotations

import os
from pathlib import Path


def write_text_whole(path: Path, text: str) -> None:
    """Write a UTF-8 file in place of the one that is there; cut off, it leaves that one as it was.

    Raises:
        OSError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
