"""Counts of the n-grams of a text, as sorted tables: see `columns`.

T tokens of the text, V words. All n-grams of n words are the valid prefixes of windows of N words, one at each token,
filled up with `</s>` behind the end of a sentence; one sort of the windows sorts all orders.
"""

from __future__ import annotations

import unicodedata
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count

import numpy as np

from murmur.core.counted import are, counted, named
from murmur.speech.language_model.columns import Block, Columns, Scratch, SortedLookup, sorted_by_key, sum_equal, summed
from murmur.speech.language_model.ngram import END, START, UNKNOWN_NAMES, words_of

END_NUMBER, START_NUMBER = 0, 1
_KEY_BITS = 64
_DISK_BYTES = 48  # of temporary files for each token and order, at most


def frequent_words(sentences: Iterable[str], most: int | None = None, min_count: int = 1) -> list[str]:
    """Words that occur at least `min_count` times, at most the `most` frequent ones; ties in code-point order."""
    return _frequent(Counter(word for sentence in sentences for word in words_of(sentence)), most, min_count)


def _frequent(counts: Mapping[str, int], most: int | None, min_count: int) -> list[str]:
    ranked = sorted((w for w, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w))
    return ranked[:most]


@dataclass(frozen=True, eq=False)
class NumberedWords:
    """A text as word numbers: `</s>` is 0 and `<s>` is 1; words are sorted, after the marks.

    Attributes:
        words: words by number.
        occurrences: (V,) occurrences of each word.
        unknown_words: number of words of the text outside the vocabulary.
        outside: these words, in the order of the text.
    """

    words: tuple[str, ...]
    occurrences: np.ndarray
    unknown_words: int
    outside: tuple[str, ...]
    _tokens: Columns  # numbers in the order in which words appear
    _number: np.ndarray  # word numbers of these

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the T word numbers in blocks."""
        return (self._number[tokens] for (tokens,) in self._tokens.blocks())

    @staticmethod
    def of(
        sentences: Iterable[str],
        vocabulary: Iterable[str] | None,
        most: int | None,
        unknown: str | None,
        scratch: Scratch,
    ) -> NumberedWords:
        """Number the words of sentences; raises ValueError as `KneserNey.train` does."""
        seen: dict[str, int] = defaultdict(count(2).__next__)
        tokens = Columns(scratch).extend(
            scratch.watched(_provisional(sentences, seen, scratch.rows), "tokens read", None)
        )
        counts = np.zeros(len(seen) + 2, dtype=np.int64)
        for (block,) in tokens.blocks():
            counts += np.bincount(block, minlength=len(counts))
        if not counts[START_NUMBER]:
            raise ValueError("no sentence to train on: give at least one line of text")
        if inside := seen.keys() & {START, END}:
            raise ValueError(f"the text holds {', '.join(sorted(inside))}: sentence marks are put there by training")
        if vocabulary is None and most is not None:
            vocabulary = _frequent(dict(zip(seen, counts[2:].tolist(), strict=True)), most, 1)
        words, missing = _vocabulary(seen, vocabulary, unknown)
        number_of = {word: n for n, word in enumerate(words)}
        other = number_of[unknown] if unknown is not None else -1  # no word is missing of a closed vocabulary
        number = np.array([END_NUMBER, START_NUMBER, *(number_of.get(word, other) for word in seen)], dtype=np.int64)
        occurrences = np.zeros(len(words), dtype=np.int64)
        np.add.at(occurrences, number, counts)
        lost = int(counts[[seen[word] for word in missing]].sum())
        return NumberedWords(words, occurrences, lost, missing, tokens, number)


def _provisional(sentences: Iterable[str], seen: dict[str, int], rows: int) -> Iterator[Block]:
    """Blocks of tokens, numbered in the order in which words appear."""
    tokens = array("i")
    for sentence in sentences:
        tokens.append(START_NUMBER)
        tokens.extend(map(seen.__getitem__, words_of(sentence)))
        tokens.append(END_NUMBER)
        if len(tokens) >= rows:
            yield (np.array(tokens, dtype=np.int32),)
            tokens = array("i")
    yield (np.array(tokens, dtype=np.int32),)


def _vocabulary(
    seen: Mapping[str, int], vocabulary: Iterable[str] | None, unknown: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Words by number, and words of the text that are none of them."""
    marks = [END, START] + ([unknown] if unknown is not None else [])
    given = {unicodedata.normalize("NFC", w) for w in (seen if vocabulary is None else vocabulary)}
    if unknown is not None:  # of two unknown words readers would take the wrong one
        given = given.difference(UNKNOWN_NAMES)
    missing = tuple(word for word in seen if word not in given and word not in marks)
    if missing and unknown is None:
        raise ValueError(
            f"{counted(len(missing), 'word')} of the text {are(len(missing))} outside the closed vocabulary"
            f" ({named(sorted(missing))}): "
            "name an unknown word, or drop those sentences"
        )
    return (*marks, *sorted(given - set(marks))), missing


@dataclass(frozen=True)
class Packing:
    """N-grams as keys that sort like their word numbers: uint64, or complex128 for those of more than 64 bits.

    A complex number sorts by its real part, then by its imaginary part. Each holds whole numbers below 2^53.
    """

    bits: int  # of a word number

    def pack(self, columns: Sequence[np.ndarray]) -> np.ndarray:
        """(K,) keys of n-grams, whose words are the columns."""
        if len(columns) * self.bits > _KEY_BITS:
            half = len(columns) // 2
            keys: np.ndarray = np.empty(len(columns[0]), dtype=np.complex128)
            keys.real, keys.imag = self.pack(columns[:half]), self.pack(columns[half:])
            return keys
        packed = columns[0].astype(np.uint64)
        for column in columns[1:]:
            packed = (packed << np.uint64(self.bits)) | column.astype(np.uint64)
        return packed

    def unpack(self, keys: np.ndarray, n: int) -> list[np.ndarray]:
        """Columns of the word numbers of n-grams of n words."""
        if n * self.bits > _KEY_BITS:
            half = n // 2
            return [*self.unpack(keys.real, half), *self.unpack(keys.imag, n - half)]
        keys, mask = keys.astype(np.uint64), (1 << self.bits) - 1
        return [((keys >> (self.bits * (n - 1 - k))) & mask).astype(np.int64) for k in range(n)]

    def prefix(self, keys: np.ndarray, n: int) -> np.ndarray:
        """Keys of the first n - 1 words; 0 for n = 1."""
        return self.pack(self.unpack(keys, n)[:-1]) if n * self.bits > _KEY_BITS else keys >> self.bits


@dataclass(frozen=True, eq=False)
class Level:
    """The n-grams of n words of a text, sorted.

    Attributes:
        counts: keys, counts to discount, and False for those that a cut-off removes.
        rotated: keys of words 2 to n and then the first one, sorted; none for n = 1.
        kept: number of n-grams that no cut-off removes.
        counts_of_counts: number of n-grams of count 1, 2, 3 and 4.
    """

    counts: Columns
    rotated: Columns
    n: int
    kept: int
    counts_of_counts: tuple[int, ...]


def counted_levels(text: NumberedWords, cutoffs: Sequence[int], scratch: Scratch) -> tuple[Packing, list[Level]]:
    """Count the n-grams of 1 to N words, with N = len(cutoffs)."""
    packing, order = Packing(max(1, (len(text.words) - 1).bit_length())), len(cutoffs)
    scratch.disk_bytes = int(text.occurrences.sum()) * order * _DISK_BYTES
    windows = sorted_by_key(_windows(text, order, packing, scratch), scratch, sum_equal)
    levels: list[Level] = []
    for n in range(order, 0, -1):
        if n == 1:
            grams: Iterator[Block] = iter([(np.arange(len(text.words), dtype=np.uint64), text.occurrences)])
        else:
            grams = summed(_prefixes(windows, order, n, packing))
        levels.insert(0, _level(n, grams, levels[0] if levels else None, cutoffs[n - 1], packing, scratch))
    windows.drop()
    return packing, levels


def _windows(text: NumberedWords, order: int, packing: Packing, scratch: Scratch) -> Iterator[Block]:
    """Keys of windows of N words that do not begin with `</s>`, each with the count 1."""
    behind = np.zeros(order - 1, dtype=np.int64)
    rest = behind[:0]
    blocks = scratch.watched(text.blocks(), "tokens sorted", int(text.occurrences.sum()))
    for block in chain(blocks, [behind]):
        tokens = np.concatenate([rest, block])
        size = max(0, len(tokens) - len(behind))
        columns = [tokens[:size]]
        for k in range(1, order):
            columns.append(np.where(columns[-1] == END_NUMBER, END_NUMBER, tokens[k : k + size]))
        begins = columns[0] != END_NUMBER
        keys = packing.pack([column[begins] for column in columns])
        yield keys, np.ones(len(keys), dtype=np.int64)
        rest = tokens[size:]


def _prefixes(windows: Columns, order: int, n: int, packing: Packing) -> Iterator[Block]:
    """N-grams of n > 1 words that begin the windows, with counts; not those that go on behind `</s>`."""
    for keys, counts in windows.blocks():
        words = packing.unpack(keys, order)[:n]
        valid = words[-2] != END_NUMBER
        yield packing.pack([word[valid] for word in words]), counts[valid]


def _level(
    n: int, grams: Iterator[Block], above: Level | None, cutoff: int, packing: Packing, scratch: Scratch
) -> Level:
    """Counts: occurrences at the highest order and after `<s>`, else the number of different words in front."""
    in_front: SortedLookup | None = None
    if above is not None:
        suffixes = (packing.prefix(keys, n + 1) for (keys,) in above.rotated.blocks())
        in_front = SortedLookup(summed((keys, np.ones(len(keys), dtype=np.int64)) for keys in suffixes), 0)
    table, of_counts = Columns(scratch), np.zeros(5, dtype=np.int64)
    kept = 0
    for keys, occurrences in grams:
        words = packing.unpack(keys, n)
        counts = occurrences if in_front is None else np.where(words[0] == START_NUMBER, occurrences, in_front(keys))
        counts = np.where(words[-1] == START_NUMBER, 0, counts)
        keep = (occurrences > cutoff) | (n == 1)
        kept += int(keep.sum())
        of_counts += np.bincount(np.minimum(counts, 5), minlength=6)[:5]
        table.append((keys, counts, keep))
    unpacked = (packing.unpack(block[0], n) for block in table.blocks()) if n > 1 else ()
    rotated = ((packing.pack([*words, first]),) for first, *words in unpacked)
    return Level(table, sorted_by_key(rotated, scratch), n, kept, tuple(of_counts[1:].tolist()))
