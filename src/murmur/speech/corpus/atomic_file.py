"""Text files that appear complete: written under another name and then renamed."""

from __future__ import annotations

from pathlib import Path

from murmur.core.whole_files import in_place_of
from murmur.speech.corpus.file_errors import naming


def write_text_whole(path: Path, text: str) -> None:
    """Write a UTF-8 file in place of the existing one, which stays unchanged if the write is cut off.

    A FIFO, a device or a symbolic link stays, and what it leads to is written.

    Raises:
        OSError: the file cannot be written; names it.
    """
    with in_place_of(path) as beside, naming(path):
        beside.write_text(text, encoding="utf-8")
