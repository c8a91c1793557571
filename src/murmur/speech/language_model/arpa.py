"""ARPA files of back-off language models, plain or gzip: checked in full before any C++ code sees them.

Format: D. Paul's, as described for SRILM's `ngram-format(5)`. Numbers are written as the shortest decimal that reads
back to the same float32, so that writing and reading gives the same model.
"""

from __future__ import annotations

import gzip
import re
import unicodedata
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, cast

import numpy as np

from murmur.core.counted import counted
from murmur.core.whole_files import in_place_of
from murmur.speech.corpus.file_content import UTF_16, is_gzip
from murmur.speech.language_model.ngram import Grams, NgramModel

_DEFLATED = 1032  # bytes that one byte of a gzip file represents at most
_BLOCK = 1 << 16  # n-grams that are written at a time
Section = tuple[list[np.ndarray], np.ndarray, np.ndarray]  # columns of word numbers, log10 of probability and back-off
_COUNT = re.compile(rb"ngram\s+(\d{1,4})\s*=\s*(\d{1,12})\s*$")


class _Lines:
    """The lines of a file that are not blank, with their numbers for messages."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.number = path, 0
        self.size = path.stat().st_size * (_DEFLATED if is_gzip(path) else 1)  # bytes at most
        self._lines: Iterator[bytes] = iter(file)

    def next(self, wanted: str) -> bytes:
        for line in self._lines:
            self.number += 1
            text = (line.removeprefix(BOM_UTF8) if self.number == 1 else line).strip()
            if text:
                return text
        raise ValueError(f"{self.path} ends before {wanted}: the ARPA file is cut short")

    def error(self, what: str) -> ValueError:
        return ValueError(f"{self.path}:{self.number}: {what}")


def read_arpa(path: Path) -> NgramModel:
    """Read an ARPA file, plain or gzip, whatever its name. Text before the line `\\data\\` is skipped.

    Raises:
        FileNotFoundError: no such file.
        ValueError: counts that differ from the header, a malformed or repeated line, a positive log-probability, a word
            that is not a unigram, or an n-gram whose first n - 1 words are not listed; names file and line or n-gram.
    """
    with _lines_of(path) as lines:
        counts = _read_counts(lines)
        model = NgramModel((), ())
        number_of: dict[bytes, int] = {}
        for n, count in enumerate(counts, 1):
            section = _read_section(lines, n, count, number_of, highest=n == len(counts))
            if n == 1:
                words = _decoded(number_of)
                if len(set(words)) != len(words):
                    raise ValueError(f"{path}: unigrams repeat (Unicode NFC makes some equal); merge them")
                model = NgramModel(words, ())
            model = NgramModel(model.words, (*model.orders, _sorted_grams(path, model, *section)))
        if lines.next("\\end\\") != b"\\end\\":
            raise lines.error("expected \\end\\: more n-grams than the header counts, or a damaged file")
    return model


def read_unigrams(path: Path) -> dict[str, float]:
    """Read log10 p of the words of an ARPA file; n-grams of more words are neither read nor checked.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is malformed up to the end of its unigrams.
    """
    with _lines_of(path) as lines:
        counts = _read_counts(lines)
        number_of: dict[bytes, int] = {}
        _, log10_K, _ = _read_section(lines, 1, counts[0], number_of, highest=len(counts) == 1)
        return dict(zip(_decoded(number_of), log10_K.tolist(), strict=True))


def _decoded(words: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(unicodedata.normalize("NFC", word.decode("utf-8")) for word in words)


@contextmanager
def _lines_of(path: Path) -> Iterator[_Lines]:
    """Lines of a file; errors of its gzip or its UTF-8 name it."""
    if not path.is_file():
        raise FileNotFoundError(f"no ARPA file at {path}: check the path of the language model")
    with open(path, "rb") as file:
        if file.read(2) in UTF_16:
            raise ValueError(f"{path} is UTF-16, not UTF-8: convert it, e.g. with iconv -f UTF-16 -t UTF-8")
    try:
        with opened_arpa(path, "rb") as file:
            yield _Lines(path, file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged ({error}): copy it again") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error}): convert it, e.g. with iconv") from error


def opened_arpa(path: Path, mode: Literal["rb", "wb"]) -> IO[bytes]:
    packed = path.suffix == ".gz" if mode == "wb" else is_gzip(path)
    if packed:
        return cast("IO[bytes]", gzip.open(path, mode, compresslevel=6))
    return open(path, mode)


def _read_counts(lines: _Lines) -> list[int]:
    while lines.next("\\data\\") != b"\\data\\":
        pass
    counts: list[int] = []
    while True:
        line = lines.next("\\1-grams:")
        if line == b"\\1-grams:" and counts:
            return counts
        match = _COUNT.fullmatch(line)
        if match is None or int(match[1]) != len(counts) + 1:
            raise lines.error(f"expected `ngram {len(counts) + 1}=COUNT` in the header, found {_shown(line)}")
        counts.append(int(match[2]))


def _read_section(
    lines: _Lines, n: int, count: int, number_of: dict[bytes, int], highest: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Word numbers (K, n) of the n-grams of n words, and their two columns of figures (K,).

    At n = 1 `number_of` is filled. The title of the first section was read already.
    """
    if n > 1 and lines.next(f"\\{n}-grams:") != b"\\%d-grams:" % n:
        raise lines.error(f"expected \\{n}-grams:, so the {n - 1}-grams are more than the header counts")
    if count > lines.size // (2 * n + 2):  # a probability and n words take at least two bytes each, and an end of line
        raise lines.error(f"the header counts {count} {n}-grams, more than a file of {lines.size} bytes can hold")
    ids = np.empty((count, n), dtype=np.int64)
    prob, backoff = np.empty(count), np.zeros(count)
    for k in range(count):
        fields = lines.next(f"{count} {n}-grams").split()
        if len(fields) not in (n + 1, n + 2):
            raise lines.error(
                f"expected a log-probability, {counted(n, 'word')} and perhaps a back-off weight ({count} lines)"
            )
        if n == 1 and number_of.setdefault(fields[1], k) != k:
            raise lines.error(f"unigram {_shown(fields[1])} repeats")
        try:
            ids[k] = [number_of[w] for w in fields[1 : n + 1]]
            prob[k] = float(fields[0])
            if len(fields) == n + 2 and not highest:
                backoff[k] = float(fields[-1])
        except KeyError as unknown:
            raise lines.error(f"word {_shown(unknown.args[0])} is not among the unigrams") from None
        except ValueError:
            raise lines.error(f"no number in {_shown(fields[0])} or {_shown(fields[-1])}") from None
        if not prob[k] <= 0 or np.isinf(prob[k]) or not np.isfinite(backoff[k]):
            raise lines.error(f"log10 probability {prob[k]} (back-off {backoff[k]}): must be finite and at most 0")
    return ids, prob.astype(np.float32), backoff.astype(np.float32)


def _sorted_grams(
    path: Path, model: NgramModel, ids_KN: np.ndarray, prob_K: np.ndarray, backoff_K: np.ndarray
) -> Grams:
    n = ids_KN.shape[1]
    if n == 1:
        return Grams(np.zeros(len(ids_KN), dtype=np.int64), ids_KN[:, 0], prob_K, backoff_K)
    prefix_K = ids_KN[:, 0]
    for m in range(2, n):
        prefix_K = model.find(m, prefix_K, ids_KN[:, m - 1])
    lacking = np.flatnonzero(prefix_K < 0)
    if len(lacking):
        text = " ".join(model.words[i] for i in ids_KN[lacking[0]])
        raise ValueError(
            f"{path} has {counted(len(lacking), f'{n}-gram')} such as {text!r} whose first"
            f" {counted(n - 1, 'word')} it lacks as an {n - 1}-gram, which must hold the back-off weight"
        )
    key_K = prefix_K * len(model.words) + ids_KN[:, -1]
    order_K = np.argsort(key_K, kind="stable")
    repeated = np.flatnonzero(np.diff(key_K[order_K]) == 0)
    if len(repeated):
        text = " ".join(model.words[i] for i in ids_KN[order_K[repeated[0]]])
        raise ValueError(f"{path}: {n}-gram {text!r} is listed twice")
    return Grams(prefix_K[order_K], ids_KN[order_K, -1], prob_K[order_K], backoff_K[order_K])


def write_arpa(model: NgramModel, path: Path) -> None:
    """Write a model as ARPA text, gzip if the name ends in `.gz`; `read_arpa` gives it back value for value.

    The file is complete at any time; a FIFO, a device or a symbolic link stays, and what it leads to is written.
    """
    ngrams = [len(grams) for grams in model.orders]
    write_sections(path, model.words, ngrams, (_section(model, n) for n in range(1, model.order + 1)))


def write_sections(
    path: Path, words: Sequence[str], ngrams: Sequence[int], sections: Iterable[Iterable[Section]]
) -> None:
    """Write a model as `write_arpa` does, from blocks of its n-grams.

    Args:
        path: file to write.
        words: words by number.
        ngrams: number of n-grams of each order.
        sections: per order, the n-grams in blocks.

    Raises:
        OSError: the file cannot be written; names it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    names = np.array(words, dtype=object)
    # The suffix decides on compression.
    with in_place_of(path, ".gz" if path.suffix == ".gz" else "") as beside, opened_arpa(beside, "wb") as file:
        header = "".join(f"ngram {n}={number}\n" for n, number in enumerate(ngrams, 1))
        file.write(f"\\data\\\n{header}".encode())
        for n, blocks in enumerate(sections, 1):
            file.write(f"\n\\{n}-grams:\n".encode())
            for word_numbers, log10_prob, log10_backoff in blocks:
                texts = map(" ".join, zip(*(names[column].tolist() for column in word_numbers), strict=True))
                columns = [_decimals(log10_prob), texts, *([_decimals(log10_backoff)] if n < len(ngrams) else [])]
                file.write("".join("\t".join(row) + "\n" for row in zip(*columns, strict=True)).encode())
        file.write(b"\n\\end\\\n")


def _section(model: NgramModel, n: int) -> Iterator[Section]:
    grams = model.orders[n - 1]
    for begin in range(0, len(grams), _BLOCK):
        block, row = slice(begin, begin + _BLOCK), np.arange(begin, min(begin + _BLOCK, len(grams)))
        words: list[np.ndarray] = []
        for lower in model.orders[n - 1 :: -1]:
            words.insert(0, lower.word[row])
            row = lower.prefix[row]
        yield words, grams.log10_prob[block], grams.log10_backoff[block]


def _decimals(values: np.ndarray) -> list[str]:
    """The shortest decimals that read back to the same float32 values; of equal bits, one is made."""
    bits, row = np.unique(values.view(np.uint32), return_inverse=True)
    texts: list[str] = bits.view(np.float32).astype(str).astype(object)[row].tolist()
    return texts


def _shown(raw: bytes) -> str:
    return repr(raw.decode("utf-8", "replace")[:60])
