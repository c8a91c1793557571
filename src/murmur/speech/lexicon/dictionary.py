"""Lines of pronunciation dictionaries: word and phones, without the columns that some formats have between them.

    the 0.8 DH AH                   Kaldi's lexiconp.txt: a probability
    the 0.8 0.2 1.1 0.9 DH AH       lexiconp_silprob.txt, the Montreal Forced Aligner: four figures
    the [the] 0.8 DH AH             HTK, Julius: output symbol, probability (Julius also @-1.2)
    THE(2) DH IY                    CMUdict: another pronunciation; `;;;` and ` #` begin comments

A number with a decimal point or an exponent is never a phone. A whole number may be one, as in X-SAMPA or for tones: it
is taken as a phone if it stands behind other phones somewhere in the file, or if it is among phones that are known.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from murmur.core.counted import counted
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.text_lines import columns, text_lines

log = logging.getLogger(__name__)
_COMMENT = re.compile(r"\s#")
_HASHES = re.compile(r"#+(\s|$)")
_VARIANT = re.compile(r"(?<=.)\(\d+\)$")
_DECIMAL = re.compile(r"[+-]?(\d+[.,]\d*|[.,]\d+)(e[+-]?\d+)?|[+-]?\d+e[+-]\d+", re.IGNORECASE)
_BEGINS = frozenset("0123456789+-.,")  # characters that a number may begin with
_WHOLE = re.compile(r"[+-]?[0-9]+")
_OUTPUT = re.compile(r"\[.*\]|\{.*\}")
_OTHER_FORMATS = {re.compile(r'\(\s*"'): "Festival", re.compile(r"<\?xml|<lexicon\b"): "PLS (XML)"}


class Line(NamedTuple):
    """A pronunciation: file and number of its line, the word, the columns behind it."""

    place: str
    word: str
    columns: tuple[str, ...]


def read_lines(path: Path, known: Collection[str] = ()) -> list[Line]:
    """Read the pronunciations of a dictionary. Output symbols and figures are left out, which is logged.

    Args:
        path: the file.
        known: phones of the system that the dictionary is for.

    Raises:
        CorpusError: a number may be a phone or a figure, a word may hold a space, or the format is another one; names
            the line.
    """
    rows = text_lines(path)
    lines = list(_written(path, rows))
    _check_words(path, rows)
    plain = [_without_output(line) for line in lines]
    found = _without_figures(plain, known)
    for line in found:
        odd = next((c for c in line.columns if c[0] in _BEGINS and _DECIMAL.fullmatch(c)), None)
        if odd is not None:
            raise CorpusError(f"{line.place}: {line.word!r} has the number {odd} among its phones: remove it")
    changed = [line for line, new in zip(lines, found, strict=True) if new.columns != line.columns]
    if changed:
        first = f"{changed[0].word} {' '.join(changed[0].columns)}"
        log.warning(
            "%s: output symbols and probabilities of %d of %s are not used, such as %r: all pronunciations of a"
            " word are equally probable",
            *(path, len(changed), counted(len(lines), "line"), first),
        )
    return found


def words_in(lines: Sequence[str], name: str = "word list") -> Iterator[str]:
    """The first column of each line of a word list, a dictionary or a symbol table, without comments and numbers."""
    for number, line in enumerate(lines, 1):
        if fields := _columns(line, f"{name}:{number}"):
            yield _word(fields[0])


def _word(column: str) -> str:
    """The word of a first column, without the number of a variant."""
    return _VARIANT.sub("", column) if column.endswith(")") else column


def _columns(line: str, place: str) -> list[str]:
    """The columns of a line, none for a comment."""
    if line.startswith((";;;", "#")) and (line[0] == ";" or _HASHES.match(line)):
        return []
    return columns(_COMMENT.split(line, maxsplit=1)[0] if "#" in line else line, place)


def _written(path: Path, rows: Sequence[str]) -> Iterator[Line]:
    for number, line in enumerate(rows, 1):
        place = f"{path}:{number}"
        if line.lstrip().startswith(("(", "<")):
            for begin, kind in _OTHER_FORMATS.items():
                if begin.match(line.lstrip()):
                    raise CorpusError(f"{place}: a dictionary of {kind}: write `word phone phone ...` lines")
        if fields := _columns(line, place):
            yield Line(place, _word(fields[0]), tuple(fields[1:]))


def _check_words(path: Path, rows: Sequence[str]) -> None:
    """Refuse words with spaces in a file whose words and phones are separated by tabs."""
    if not any("\t" in row for row in rows):
        return
    rows = [row for row in rows if _columns(row, str(path))]
    for row in rows if all("\t" in row.strip() for row in rows) else ():
        word, *rest = row.strip().split("\t")
        if " " in word.strip() and any(" " in column.strip() for column in rest):
            raise CorpusError(f"{path}: the word {word.strip()!r} holds a space: join its parts, e.g. by an underscore")


def _without_output(line: Line) -> Line:
    """The line without HTK's output symbol and with the figure of Julius' @ as a number."""
    if not line.columns or line.columns[0][0] not in "@[{":
        return line
    figures, rest = tuple[str, ...](), line.columns
    for _ in range(2):  # they come in either order
        own, behind = rest[:1], rest[1:]
        if own and own[0].startswith("@") and _is_number(own[0][1:] or "@"):
            figures, rest = (f"{float(own[0][1:]):.6f}",), behind
        elif own and behind and _OUTPUT.fullmatch(own[0]) and not any(map(_OUTPUT.fullmatch, behind)):
            rest = behind
    return line._replace(columns=figures + rest)


def _is_number(column: str) -> bool:
    if column[0] not in _BEGINS:
        return False
    return _DECIMAL.fullmatch(column) is not None or _WHOLE.fullmatch(column) is not None


def _run(line: Line) -> int:
    """Number of columns before the first that is no number."""
    if not line.columns or line.columns[0][0] not in _BEGINS:
        return 0
    return next((n for n, column in enumerate(line.columns) if not _is_number(column)), len(line.columns))


def _without_figures(lines: Sequence[Line], known: Collection[str]) -> list[Line]:
    runs = [_run(line) for line in lines]
    if not any(runs):
        return list(lines)
    sure = [
        max((n + 1 for n in range(run) if _DECIMAL.fullmatch(line.columns[n])), default=0)
        for line, run in zip(lines, runs, strict=True)
    ]
    most = max(sure, default=0)
    if most and all(run >= most for run in runs):  # every line has all figures, some of them as 0 or 1
        sure = [most] * len(lines)
    phones = _whole_phones(lines, runs) | set(known)
    found = []
    for line, run, figures in zip(lines, runs, sure, strict=True):
        doubtful = [column for column in line.columns[figures:run] if column not in phones]
        if doubtful:
            raise CorpusError(
                f"{line.place}: is {doubtful[0]} in {' '.join((line.word, *line.columns))[:80]!r} a phone or a figure?"
                " write probabilities with a decimal point, and give phones that are numbers another name"
            )
        found.append(line._replace(columns=line.columns[figures:]))
    return found


def _whole_phones(lines: Sequence[Line], runs: Sequence[int]) -> set[str]:
    """Whole numbers that must be phones: behind other phones, last in a line, or in a file of numbers alone."""
    if all(_WHOLE.fullmatch(column) for line in lines for column in line.columns):
        return {column for line in lines for column in line.columns}
    behind = {column for line, run in zip(lines, runs, strict=True) for column in line.columns[run:]}
    last = {line.columns[-1] for line in lines if line.columns}
    return {column for column in behind | last if _WHOLE.fullmatch(column)}
