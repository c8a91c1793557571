"""The lines, columns and characters of text files, by one rule for all readers.

A file is UTF-8, with or without a byte order mark, plain or packed by gzip, whatever its name. A line ends at LF or
CR LF, and nowhere else. Columns are separated by spaces and tabs; words of a sentence by any white space. Text is NFC.
"""

from __future__ import annotations

import gzip
import re
import unicodedata
import zlib
from collections.abc import Iterator
from pathlib import Path

from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.file_errors import not_utf8

GZIP = b"\x1f\x8b"
_COLUMN_ENDS = re.compile(r"[ \t]+")


def nfc(text: str) -> str:
    """Return a text in NFC, so that equal-looking ones are equal."""
    return unicodedata.normalize("NFC", text)


def is_gzip(path: Path) -> bool:
    """True if the content of a file is packed by gzip, whatever its name."""
    with open(path, "rb") as file:
        return file.read(len(GZIP)) == GZIP


def text_of(path: Path) -> str:
    """Return the text of a file as it is written, without its byte order mark, with LF for every end of a line.

    Raises:
        CorpusError: the file is damaged, not UTF-8, or has other ends of lines; names the line.
        OSError: the file cannot be read.
    """
    return decoded(path, unpacked(path))


def unpacked(path: Path) -> bytes:
    """Return the content of a file, unpacked if it is gzip; raises as `text_of` does."""
    content = Path(path).read_bytes()
    try:
        return gzip.decompress(content) if content.startswith(GZIP) else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{path} is damaged ({error}): copy it again") from error


def decoded(path: Path | str, content: bytes) -> str:
    """Return the text of bytes that were read from a file; raises as `text_of` does."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorpusError(not_utf8(path, error)) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise CorpusError(f"{path}:{line} holds a NUL: the file is UTF-16 (convert it, e.g. with iconv), or damaged")
    text = text.replace("\r\n", "\n")
    if "\r" in text.rstrip("\r") and "\n" not in text:
        raise CorpusError(f"{path} ends its lines with CR alone: convert it, e.g. with tr '\\r' '\\n'")
    return text


def written_lines(path: Path) -> list[str]:
    """Return the lines of a file as they are written, for those that hold names of files; raises as `text_of`."""
    lines = text_of(path).split("\n")
    return lines if lines[-1] else lines[:-1]


def text_lines(path: Path) -> list[str]:
    """Return the lines of a file in NFC; raises as `text_of` does."""
    return [nfc(line) for line in written_lines(path)]


def numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield FILE:NUMBER and the text of each line that is not blank, in NFC; raises as `text_of` does."""
    for number, line in enumerate(text_lines(path), 1):
        if line.strip():
            yield f"{path}:{number}", line.strip()


def columns(line: str, place: str, most: int = -1) -> list[str]:
    """Return the columns of a line; the last one of `most` columns holds the rest of the line.

    Args:
        line: the line.
        place: file and number of the line, for messages.
        most: the largest number of columns; -1 for any.

    Raises:
        CorpusError: a column other than the rest holds white space that separates no columns, such as U+00A0.
    """
    quick = line.split(maxsplit=most - 1 if most > 0 else -1)
    if " ".join(quick) == line:  # single spaces alone
        return quick
    found = _COLUMN_ENDS.split(line.strip(" \t\r\n"), max(most - 1, 0))
    found = found if found[0] else []
    for column in found if len(found) != most else found[:-1]:
        if column.split() != [column]:
            odd = next(c for c in column if c.isspace())
            raise CorpusError(f"{place}: {column[:40]!r} holds U+{ord(odd):04X}: separate columns by spaces or tabs")
    return found
