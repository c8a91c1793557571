"""Errors of damaged or wrong files and of full disks: each one names the file.

Parsers of JSON, NumPy, zip, gzip and Kaldi's archives raise a dozen kinds of errors on damaged input, and most of
them do not name the file.
"""

from __future__ import annotations

import json
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from murmur.core.plain_files import read_plain
from murmur.speech.corpus.corpus import CorpusError

NONSENSE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
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


def not_utf8(path: Path | str, error: UnicodeDecodeError) -> str:
    """Return the message for a text file that is not UTF-8; `error` is that of decoding its bytes from the first on."""
    for first, (kind, program) in PACKED.items():
        if error.object.startswith(first):
            return f"{path} is compressed ({kind}): unpack it, e.g. with {program}"
    if error.object.startswith(UTF_16) or b"\0" in error.object[:200]:
        return f"{path} is UTF-16, not UTF-8: convert it, e.g. with iconv -f UTF-16 -t UTF-8"
    line = error.object.count(b"\n", 0, error.start) + 1
    return f"{path} is not UTF-8 (byte {error.start}) in line {line}: convert it, e.g. with iconv"


@contextmanager
def making_sense_of(path: Path, remedy: str) -> Iterator[None]:
    """Turn a parser's errors about a file's content into an error that names the file.

    The block should hold only the code that reads or interprets that one file.

    Raises:
        CorpusError: the content is not as expected.
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

    Raises:
        OSError: the file cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror}") from error


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        CorpusError: the file holds no object.
        OSError: the file cannot be read.
    """
    with making_sense_of(path, remedy):
        found = json.loads(read_plain(path))
        if not isinstance(found, dict):
            raise CorpusError(f"{path} holds a {type(found).__name__}, not an object: {remedy}")
        return found


def read_arrays(path: Path, remedy: str) -> dict[str, np.ndarray]:
    """All arrays of an .npz file; nothing is unpickled.

    Raises:
        CorpusError: the file is damaged or of another kind.
        OSError: the file cannot be read.
    """
    with making_sense_of(path, remedy), np.load(path, allow_pickle=False) as found:
        if not isinstance(found, np.lib.npyio.NpzFile):
            raise CorpusError(f"{path} holds a single array, not an .npz of named ones: {remedy}")
        return {name: found[name] for name in found.files}
