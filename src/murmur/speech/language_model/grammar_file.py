"""Readers of grammar files: JSGF, acceptors as OpenFst's text, lists of words."""

from __future__ import annotations

import gzip
import math
import unicodedata
import zlib
from pathlib import Path

from murmur.core.counted import counted
from murmur.speech.corpus.text_lines import columns, is_gzip, text_lines
from murmur.speech.language_model.acceptor import Acceptor, Arc, acceptor_of_rules, deterministic
from murmur.speech.language_model.jsgf import HEADER, read_jsgf
from murmur.speech.lexicon.lexicon import EPSILON, is_reserved

ARPA_BEGIN = b"\\data\\"


def read_grammar(path: Path) -> Acceptor:
    """The deterministic acceptor of a JSGF file, or of an acceptor in OpenFst's text form.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file has another content; the message names file and line.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no grammar file {path}: check the path")
    if _begin(path).startswith(HEADER.encode()):
        found = acceptor_of_rules(read_jsgf(path), str(path))
    elif looks_like_arpa(path):
        raise ValueError(f"{path} looks like a language model, not like a grammar: give it as --lm")
    else:
        found = _read_text_acceptor(path)
    return deterministic(found, str(path))


def looks_like_arpa(path: Path) -> bool:
    """True for files that begin like language models."""
    return any(line.strip() == ARPA_BEGIN for line in _begin(path).split(b"\n"))


def _begin(path: Path) -> bytes:
    """The first bytes of a file, unpacked."""
    with gzip.open(path) if is_gzip(path) else open(path, "rb") as file:
        try:
            return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is damaged ({error}): copy it again") from error


def read_words(path: Path) -> tuple[str, ...]:
    """The words of a list, one per line, in byte order; lines that begin with `#` are comments.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line with several words, a reserved symbol, or no word at all; the message names the line.
    """
    found = set()
    for number, fields in _fields_of(path, "word list"):
        if fields[0].startswith("#") and not is_reserved(fields[0]):
            continue
        if len(fields) > 1:
            raise ValueError(
                f"{path}:{number}: {counted(len(fields), 'word')} on a line: a word list has one a line; for phrases"
                " write a grammar (--grammar)"
            )
        found.add(_checked(fields[0], path, number))
    if not found:
        raise ValueError(f"{path} holds no word: write one a line")
    return tuple(sorted(found, key=str.encode))


def _read_text_acceptor(path: Path) -> Acceptor:
    """Lines `FROM TO WORD [COST]` and `STATE [COST]` for final states; the first line's FROM is the start."""
    arcs: list[Arc] = []
    finals: dict[int, float] = {}
    number_of: dict[int, int] = {}
    for line, fields in _fields_of(path, "grammar"):
        where = f"{path}:{line}"
        numbers = [_state(field, where) for field in fields[: 2 if len(fields) > 2 else 1]]
        states = [number_of.setdefault(state, len(number_of)) for state in numbers]
        cost = _cost(fields[-1], where) if len(fields) in (2, 4) else 0.0
        if len(fields) > 4:
            raise ValueError(f"{where}: {len(fields)} fields: write `FROM TO WORD [COST]`, or `STATE [COST]`")
        if len(fields) > 2:
            word = None if fields[2] == EPSILON else _checked(fields[2], path, line)
            arcs.append(Arc(states[0], word, cost, states[1]))
        elif states[0] in finals:
            raise ValueError(f"{where}: state {fields[0]} is final in an earlier line already")
        else:
            finals[states[0]] = cost
    found = Acceptor(tuple(arcs), finals).trimmed()
    if not found.words:
        raise ValueError(f"{path}: no sentence with a word leads from the first state to a final one")
    return found


def _fields_of(path: Path, kind: str) -> list[tuple[int, list[str]]]:
    """The lines that are not blank, split at white space, with their numbers."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no {kind} {path}: check the path")
    lines = enumerate(text_lines(path), 1)
    return [(number, columns(line, f"{path}:{number}")) for number, line in lines if line.strip()]


def _checked(word: str, path: Path, line: int) -> str:
    if is_reserved(word):
        raise ValueError(f"{path}:{line}: {word!r} is a reserved symbol and cannot be a word")
    return unicodedata.normalize("NFC", word)


def _state(field: str, where: str) -> int:
    if not (field.isascii() and field.isdigit() and len(field) <= 18):
        raise ValueError(
            f"{where}: {field[:40]!r} is no number of a state: a grammar is a JSGF file, whose first line is "
            f"`{HEADER} V1.0;`, or has lines `FROM TO WORD [COST]` and `STATE [COST]`"
        )
    return int(field)


def _cost(field: str, where: str) -> float:
    try:
        cost = float(field)
    except ValueError:
        cost = -1.0
    if not 0.0 <= cost < math.inf:
        raise ValueError(f"{where}: cost {field[:40]!r} must be a number of at least 0, -ln of a probability")
    return cost
