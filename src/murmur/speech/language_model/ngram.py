"""Back-off n-gram models as sorted arrays, and the perplexity of text.

p(w | h) = prob[h w] if the model lists h w, else backoff[h] * p(w | h without its first word); logarithms are to
base 10, as in ARPA files. An n-gram is the pair (row of its first n - 1 words in the order below, its last word), so
the lookup of a whole text is one binary search per order.

K n-grams of one order, T tokens of a text, N orders. Row -1 means: not listed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

START, END = "<s>", "</s>"
UNKNOWN_NAMES = ("<unk>", "<UNK>")


@dataclass(frozen=True, eq=False)
class Grams:
    """The n-grams of one order, sorted by (prefix row, last word). Order 1: prefix 0 throughout, row = word number."""

    prefix: np.ndarray  # (K,) int64
    word: np.ndarray  # (K,) int64
    log10_prob: np.ndarray  # (K,) float32
    log10_backoff: np.ndarray  # (K,) float32, zeros at the highest order

    def __len__(self) -> int:
        return len(self.word)


@dataclass(frozen=True, eq=False)
class NgramModel:
    """A back-off model: `words` by number, `orders[n - 1]` the n-grams of n words. Every prefix is itself listed."""

    words: tuple[str, ...]
    orders: tuple[Grams, ...]

    @property
    def order(self) -> int:
        """Longest n-gram, in words."""
        return len(self.orders)

    @property
    def unknown(self) -> str | None:
        """The word for words outside the vocabulary, `<unk>` or `<UNK>`; None in a closed vocabulary."""
        return next((name for name in UNKNOWN_NAMES if name in self.number_of), None)

    @cached_property
    def number_of(self) -> dict[str, int]:
        """Word numbers, the inverse of `words`."""
        return {word: n for n, word in enumerate(self.words)}

    @cached_property
    def _keys(self) -> tuple[np.ndarray, ...]:
        return tuple(g.prefix * len(self.words) + g.word for g in self.orders)

    def find(self, n: int, prefix_T: np.ndarray, word_T: np.ndarray) -> np.ndarray:
        """Rows among the n-grams of `n` words of (prefix row, word) pairs; -1 if not listed or if an input is -1."""
        keys_K = self._keys[n - 1]
        wanted_T = np.where((prefix_T < 0) | (word_T < 0), -1, prefix_T * len(self.words) + word_T)
        if not len(keys_K):
            return np.full(len(wanted_T), -1)
        row_T = np.minimum(np.searchsorted(keys_K, wanted_T), len(keys_K) - 1)
        return np.where(keys_K[row_T] == wanted_T, row_T, -1)

    def rows_of_text(self, word_T: np.ndarray, first_T: np.ndarray) -> list[np.ndarray]:
        """Per order n the row of the n-gram that ends at each token; no n-gram crosses a token marked in `first_T`."""
        rows = [word_T]
        for n in range(2, self.order + 1):
            before_T = np.where(first_T, -1, np.roll(rows[-1], 1))
            rows.append(self.find(n, before_T, word_T))
        return rows

    def log10_probs(self, word_T: np.ndarray, first_T: np.ndarray) -> np.ndarray:
        """log10 p of each token given the tokens before it in its sentence; nan for a token that is -1 (unknown)."""
        rows = self.rows_of_text(word_T, first_T)
        log10_T = np.zeros(len(word_T))
        open_T = np.ones(len(word_T), dtype=bool)
        for n in range(self.order, 0, -1):
            found_T = open_T & (rows[n - 1] >= 0)
            log10_T[found_T] += self.orders[n - 1].log10_prob[rows[n - 1][found_T]]
            open_T &= ~found_T
            if n > 1:
                history_T = np.where(first_T, -1, np.roll(rows[n - 2], 1))
                backed_T = open_T & (history_T >= 0)
                log10_T[backed_T] += self.orders[n - 2].log10_backoff[history_T[backed_T]]
        log10_T[open_T] = np.nan
        return log10_T

    def numbers_of(self, sentences: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of sentences with `<s>` and `</s>` around each, and a mask of the `<s>`.

        Words outside the vocabulary get the number of the unknown word, or -1 if there is none.

        Raises:
            ValueError: a sentence mark inside a sentence.
        """
        start, end = self.number_of[START], self.number_of[END]
        unknown = self.number_of[self.unknown] if self.unknown is not None else -1
        numbers = []
        for sentence in sentences:
            words = unicodedata.normalize("NFC", sentence).split()
            if inside := sorted({START, END}.intersection(words)):
                raise ValueError(f"the text holds {', '.join(inside)}: leave sentence marks out, they are added to it")
            numbers += [start, *(self.number_of.get(word, unknown) for word in words), end]
        word_T = np.array(numbers, dtype=np.int64)
        return word_T, word_T == start

    def restricted(self, vocabulary: Collection[str]) -> tuple[NgramModel, list[str]]:
        """The model without n-grams that hold a word outside `vocabulary`, and the removed words, sorted.

        `<s>` and `</s>` always stay. Probabilities are unchanged: those of the removed words are not redistributed.
        """
        stays = [w in (START, END) or w in vocabulary for w in self.words]
        removed = sorted(w for w, keep in zip(self.words, stays, strict=True) if not keep)
        if not removed:
            return self, []
        keep_word = np.array(stays)
        return select_rows(self, [keep_word, *(keep_word[g.word] for g in self.orders[1:])]), removed


def select_rows(model: NgramModel, keep: Sequence[np.ndarray]) -> NgramModel:
    """The model with only the n-grams marked in `keep[n - 1]` whose prefix stays too; words are those of order 1."""
    new_word = np.cumsum(keep[0]) - 1
    row_below, orders = np.zeros(1, dtype=np.int64), []
    for n, (grams, wanted) in enumerate(zip(model.orders, keep, strict=True), 1):
        kept = wanted & (row_below[grams.prefix] >= 0)
        prefix = row_below[grams.prefix[kept]]
        word = new_word[grams.word[kept]]
        orders.append(Grams(prefix, word, grams.log10_prob[kept], grams.log10_backoff[kept]))
        row_below = np.where(kept, np.cumsum(kept) - 1, -1)
        if n == 1:
            words = tuple(w for w, stays in zip(model.words, kept, strict=True) if stays)
    return NgramModel(words, tuple(orders))


@dataclass(frozen=True)
class Perplexity:
    """A model's prediction of a text. Tokens are the words and one `</s>` per sentence.

    `log10_prob` sums over the scored tokens, which are all tokens in a model with an unknown word, and all but the
    unknown words in a closed one; `log10_prob_known` leaves the unknown words out in either case.
    """

    sentences: int
    words: int
    unknown_words: int
    scored_tokens: int
    log10_prob: float
    log10_prob_known: float

    @property
    def perplexity(self) -> float:
        """10 ** (- log10_prob / scored tokens)."""
        return float(10 ** (-self.log10_prob / self.scored_tokens))

    @property
    def perplexity_known(self) -> float:
        """The same over tokens that are in the vocabulary."""
        return float(10 ** (-self.log10_prob_known / (self.words + self.sentences - self.unknown_words)))

    @property
    def unknown_percent(self) -> float:
        """Words outside the vocabulary, as a percentage of all words."""
        return 100.0 * self.unknown_words / self.words if self.words else 0.0

    def __str__(self) -> str:
        oov = f"OOV {self.unknown_percent:.2f} % ({self.unknown_words} / {self.words})"
        return f"perplexity {self.perplexity:.2f}, {self.perplexity_known:.2f} without OOV words; {oov}"


def perplexity(model: NgramModel, sentences: Iterable[str]) -> Perplexity:
    """Perplexity and unknown words of sentences of space-separated words, with `</s>` predicted at each end.

    Unknown words are those outside the vocabulary, and `<unk>` itself.

    Raises:
        ValueError: there is no sentence, one holds a sentence mark, or the model lacks `<s>` or `</s>`.
    """
    for mark in (START, END):
        if mark not in model.number_of:
            raise ValueError(f"the language model has no {mark}: it cannot score whole sentences; train it with {mark}")
    word_T, first_T = model.numbers_of(sentences)
    if not len(word_T):
        raise ValueError("no sentence to score: give at least one line of text")
    log10_T = model.log10_probs(word_T, first_T)[~first_T]
    scored_T = ~np.isnan(log10_T)
    unknown = model.number_of[model.unknown] if model.unknown is not None else -1
    unknown_T = word_T[~first_T] == unknown
    count = int(first_T.sum())
    return Perplexity(
        sentences=count,
        words=len(word_T) - 2 * count,
        unknown_words=int(unknown_T.sum()),
        scored_tokens=int(scored_T.sum()),
        log10_prob=float(log10_T[scored_T].sum()),
        log10_prob_known=float(log10_T[scored_T & ~unknown_T].sum()),
    )
