"""Contents of data files: text by one rule for all readers, JSON, arrays. Each error names the file.

A text file is UTF-8, with or without a byte order mark, plain or packed by gzip, whatever its name. A line ends at LF
or CR LF, and nowhere else. Columns are separated by spaces and tabs; words of a sentence by any white space. Text is
NFC.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import tokenize
import unicodedata
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from murmur.core.plain_files import UNREADABLE, read_plain
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.remote import bytes_of, is_remote

NONSENSE = (
    *UNREADABLE,
    MemoryError,  # for a size given in a header
    EOFError,
    SyntaxError,  # these three for an array's header, a Python literal
    tokenize.TokenError,
    RuntimeError,  # by native readers, and for archives of another method
    zipfile.BadZipFile,
    zlib.error,
)


PACKED = {  # first bytes of packed files: name of the format and a program that unpacks it
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"\xfd7zXZ": ("xz", "unxz"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\x28\xb5\x2f\xfd": ("Zstandard", "unzstd"),
    b"PK\x03\x04": ("zip", "unzip"),
}
UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # byte order marks


def not_utf8(path: Path | str, error: UnicodeDecodeError, lines: int = 0, size: int = 0) -> str:
    """Return the message for a text file that is not UTF-8; `error` is that of the bytes behind some lines."""
    for first, (kind, program) in PACKED.items():
        if error.object.startswith(first):
            return f"{path} is compressed ({kind}): unpack it, e.g. with {program}"
    if error.object.startswith(UTF_16) or b"\0" in error.object[:200]:
        return f"{path} is UTF-16, not UTF-8: convert it, e.g. with iconv -f UTF-16 -t UTF-8"
    line = lines + error.object.count(b"\n", 0, error.start) + 1
    return f"{path} is not UTF-8 (byte {size + error.start}) in line {line}: convert it, e.g. with iconv"


@contextmanager
def making_sense_of(path: Path, remedy: str) -> Iterator[None]:
    """Turn a parser's errors about a file's content into a CorpusError that names the file.

    Parsers of JSON, NumPy, zip, gzip and Kaldi's archives raise a dozen kinds of errors on damaged input. The block
    should hold only the code that reads or interprets that one file.
    """
    try:
        yield
    except CorpusError as error:
        if str(path) in str(error):
            raise
        raise CorpusError(f"{path}: {error}") from error
    except (*NONSENSE, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # the file is unreadable, and the error names it
        told = str(error).partition(" If you trust the file")[0].strip().splitlines()  # omits advice to unpickle
        what = f"{type(error).__name__}: {told[0][:200]}" if told else type(error).__name__
        raise CorpusError(f"{path} is damaged or of another kind ({what}): {remedy}") from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn an error of writing that names no file, such as that of a full disk, into one that names it.

    The block should write that file, or the files of that folder, and close them: what is buffered is written then.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror}") from error


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object in a file; a CorpusError if it holds none."""
    with making_sense_of(path, remedy):
        found = json.loads(bytes_of(path) if is_remote(path) else read_plain(path))
        if not isinstance(found, dict):
            raise CorpusError(f"{path} holds a {type(found).__name__}, not an object: {remedy}")
        return found


def read_arrays(path: Path, remedy: str, unread: Collection[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of an .npz file but those `unread`, a CorpusError if it is damaged or of another kind.

    Nothing is unpickled.
    """
    source = io.BytesIO(bytes_of(path)) if is_remote(path) else path
    with making_sense_of(path, remedy), np.load(source, allow_pickle=False) as found:
        if not isinstance(found, np.lib.npyio.NpzFile):
            raise CorpusError(f"{path} holds a single array, not an .npz of named ones: {remedy}")
        return {name: found[name] for name in found.files if name not in unread}


_PIECE_BYTES = 1 << 22
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
    """
    return decoded(path, unpacked(path))


def unpacked(path: Path) -> bytes:
    """Return the content of a file, unpacked if it is gzip; raises as `text_of` does."""
    content = bytes_of(path)
    try:
        return gzip.decompress(content) if content.startswith(GZIP) else content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{path} is damaged ({error}): copy it again") from error


def decoded(path: Path | str, content: bytes, lines: int = 0, size: int = 0) -> str:
    """Return the text of bytes that were read from a file, behind some lines and bytes; raises as `text_of` does."""
    try:
        text = content.decode("utf-8" if size else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorpusError(not_utf8(path, error, lines, size)) from error
    if "\0" in text:
        line = lines + text.count("\n", 0, text.index("\0")) + 1
        raise CorpusError(f"{path}:{line} holds a NUL: the file is UTF-16 (convert it, e.g. with iconv), or damaged")
    text = text.replace("\r\n", "\n")
    if not size and "\r" in text.rstrip("\r") and "\n" not in text:
        raise CorpusError(f"{path} ends its lines with CR alone: convert it, e.g. with tr '\\r' '\\n'")
    return text


def written_lines(path: Path) -> list[str]:
    """Return the lines of a file as they are written, for those that hold names of files; raises as `text_of`."""
    lines = text_of(path).split("\n")
    return lines if lines[-1] else lines[:-1]


def text_lines(path: Path) -> list[str]:
    """Return the lines of a file in NFC; raises as `text_of` does."""
    return [nfc(line) for line in written_lines(path)]


def each_line(path: Path) -> Iterator[str]:
    """Yield the lines of `text_lines` one by one, of a file that may be larger than memory; raises as `text_of`."""
    number = size = 0
    with open(path, "rb") as raw:
        packed = raw.peek(len(GZIP))[: len(GZIP)] == GZIP  # of a FIFO too, which is read once
        try:
            with gzip.GzipFile(fileobj=raw) if packed else raw as file:
                while lines := file.readlines(_PIECE_BYTES):
                    content = b"".join(lines)
                    yield from map(nfc, decoded(path, content, number, size).removesuffix("\n").split("\n"))
                    number, size = number + len(lines), size + len(content)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorpusError(f"{path} is damaged ({error}): copy it again") from error


def numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield FILE:NUMBER and the text of each line that is not blank, in NFC; raises as `text_of` does."""
    for number, line in enumerate(text_lines(path), 1):
        if line.strip():
            yield f"{path}:{number}", line.strip()


def columns(line: str, place: str, most: int = -1) -> list[str]:
    """Return the columns of a line; the last one of `most` columns holds the rest of the line.

    Raises:
        CorpusError: another column holds white space that separates no columns, such as U+00A0; names `place`.
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
