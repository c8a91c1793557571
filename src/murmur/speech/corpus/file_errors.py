"""Files that are not what they should be: whatever goes wrong while one is read becomes an error that names it.

Parsers of JSON, NumPy, zip, gzip and Kaldi's archives raise a dozen kinds of errors on damaged input, most of which do
not say which file they were reading.
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

from murmur.speech.corpus.corpus import CorpusError

NONSENSE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,  # of a size that stands in a header
    EOFError,
    SyntaxError,  # the three of an array's header, which is a Python literal
    tokenize.TokenError,
    RuntimeError,  # of native readers, and of archives of another method
    zipfile.BadZipFile,
    zlib.error,
)


@contextmanager
def making_sense_of(path: Path, remedy: str) -> Iterator[None]:
    """Turn what a parser raises about a file's content into an error that names the file.

    Only what reads or interprets that one file belongs into the block.

    Raises:
        CorpusError: the content is not what it should be.
    """
    try:
        yield
    except CorpusError as error:
        if str(path) in str(error):
            raise
        raise CorpusError(f"{path}: {error}") from error
    except (*NONSENSE, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # it cannot be read, whatever is in it, and says so
        told = str(error).partition(" If you trust the file")[0].strip().splitlines()  # never the advice to unpickle it
        what = f"{type(error).__name__}: {told[0][:200]}" if told else type(error).__name__
        raise CorpusError(f"{path} is damaged or of another kind ({what}): {remedy}") from error


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        CorpusError: it holds none.
        OSError: it cannot be read.
    """
    with making_sense_of(path, remedy):
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise CorpusError(f"{path} holds a {type(found).__name__}, not an object: {remedy}")
        return found


def read_arrays(path: Path, remedy: str) -> dict[str, np.ndarray]:
    """All arrays of an .npz file, none of them unpickled.

    Raises:
        CorpusError: it is no such file, or damaged.
        OSError: it cannot be read.
    """
    with making_sense_of(path, remedy), np.load(path, allow_pickle=False) as found:
        if not isinstance(found, np.lib.npyio.NpzFile):
            raise CorpusError(f"{path} holds a single array, not an .npz of named ones: {remedy}")
        return {name: found[name] for name in found.files}
