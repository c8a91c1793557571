"""Interpolated modified Kneser-Ney language models.

Chen & Goodman, "An empirical study of smoothing techniques for language modeling", Computer Speech and Language 13
(1999), section 3 and equation 26:

    p(w | h) = max(c(h w) - D(c), 0) / c(h .) + gamma(h) p(w | h'),   gamma(h) = sum of all discounts of h / c(h .)

with h' = h without its first word, and D one of D1, D2, D3+ per order, from the counts of counts n1 ... n4. The
highest order and n-grams that begin with `<s>` use their number of occurrences; the others use the number of different
words before them. Unigrams are interpolated with the uniform distribution over all words but `<s>`.
A cut-off removes rare n-grams; all their count becomes back-off weight, so sums stay one.

K n-grams of an order, T tokens of the text, V words.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from murmur.core.counted import are, counted, named
from murmur.speech.language_model.ngram import END, START, UNKNOWN, UNKNOWN_NAMES, Grams, NgramModel, words_of

_FALLBACK = (0.5, 1.0, 1.5)  # discounts if the counts of counts give none, as in tiny texts
_LOG10_OF_START = -99.0  # by custom of the ARPA format: `<s>` is never predicted


@dataclass(frozen=True)
class KneserNey:
    """Options for estimating a model.

    Attributes:
        order: length of the longest n-gram, 1 to 4 words.
        cutoffs: n-grams of n words that occur at most `cutoffs[n - 1]` times are removed; non-decreasing, first 0.
            Empty: none is removed.
        unknown: word for all words outside the vocabulary; None for a closed vocabulary.
    """

    order: int = 3
    cutoffs: tuple[int, ...] = ()
    unknown: str | None = UNKNOWN

    def __post_init__(self) -> None:
        if not 1 <= self.order <= 4:
            raise ValueError(f"order {self.order}: n-grams of 1 to 4 words can be estimated")
        cutoffs = self.cutoffs or (0,) * self.order
        if len(cutoffs) != self.order or cutoffs[0] != 0 or list(cutoffs) != sorted(cutoffs):
            raise ValueError(
                f"cut-offs {self.cutoffs} for order {self.order}: give one per order, the first 0, none below the one "
                "before it (else an n-gram would stay without its prefix)"
            )

    def train(self, sentences: Iterable[str], vocabulary: Iterable[str] | None = None) -> TrainedLanguageModel:
        """Estimate from sentences of space-separated words (NFC), with `<s>` and `</s>` added around each.

        The default `vocabulary` is all words of the text. Words outside it count as `unknown`, and so does each of
        `<unk>` and `<UNK>`, unless the vocabulary is closed.

        Raises:
            ValueError: no sentence, a mark such as `<s>` inside one, or a word outside a closed vocabulary.
        """
        text = _numbered(sentences, vocabulary, self.unknown)
        levels = _count(text, self.order)
        cutoffs = self.cutoffs or (0,) * self.order
        model, discounts, fell_back = _estimate(text.words, levels, cutoffs)
        return TrainedLanguageModel(model, discounts, fell_back, text.unknown_words, text.outside)


@dataclass(frozen=True, eq=False)
class TrainedLanguageModel:
    """An estimated model, and per order the discounts (D1, D2, D3+).

    `fell_back` lists orders without usable discounts from counts of counts (the text is tiny or artificial), for which
    (0.5, 1, 1.5) is used; `unknown_words` counts words of the text outside the vocabulary, `outside` lists them.
    """

    model: NgramModel
    discounts: tuple[tuple[float, float, float], ...]
    fell_back: tuple[int, ...]
    unknown_words: int
    outside: tuple[str, ...]


def frequent_words(sentences: Iterable[str], most: int | None = None, min_count: int = 1) -> list[str]:
    """Words that occur at least `min_count` times, at most the `most` frequent ones; ties in code-point order."""
    counts = Counter(word for sentence in sentences for word in words_of(sentence))
    ranked = sorted((w for w, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w))
    return ranked[:most]


@dataclass(frozen=True, eq=False)
class _Text:
    words: tuple[str, ...]
    tokens: np.ndarray  # (T,) word numbers: 0 `</s>`, 1 `<s>`
    first: np.ndarray  # (T,) marks each `<s>`
    unknown_words: int
    outside: tuple[str, ...]  # in the order of the text


def _numbered(sentences: Iterable[str], vocabulary: Iterable[str] | None, unknown: str | None) -> _Text:
    """Word numbers of the text. Words are sorted, after the marks, which come first."""
    split = [words_of(sentence) for sentence in sentences]
    if not split:
        raise ValueError("no sentence to train on: give at least one line of text")
    seen = dict.fromkeys(word for words in split for word in words)
    marks = [END, START] + ([unknown] if unknown is not None else [])
    given = {unicodedata.normalize("NFC", w) for w in (seen if vocabulary is None else vocabulary)}
    if unknown is not None:  # of two unknown words readers would take the wrong one
        given = given.difference(UNKNOWN_NAMES)
    if inside := seen.keys() & {START, END}:
        raise ValueError(f"the text holds {', '.join(sorted(inside))}: sentence marks are put there by training")
    missing = tuple(word for word in seen if word not in given and word not in marks)
    if missing and unknown is None:
        raise ValueError(
            f"{counted(len(missing), 'word')} of the text {are(len(missing))} outside the closed vocabulary"
            f" ({named(sorted(missing))}): "
            "name an unknown word, or drop those sentences"
        )
    words = (*marks, *sorted(given - set(marks)))
    number_of = {word: n for n, word in enumerate(words)}
    other = number_of.get(unknown, -1) if unknown is not None else -1
    numbers = [n for line in split for n in (1, *(number_of.get(w, other) for w in line), 0)]
    word_T = np.array(numbers, dtype=np.int64)
    unknown_words = sum(word not in number_of for line in split for word in line) if missing else 0
    return _Text(words, word_T, word_T == 1, unknown_words, missing)


@dataclass(frozen=True, eq=False)
class _Level:
    """All n-grams of one order in the text, sorted by (prefix row, word)."""

    prefix: np.ndarray  # (K,) row of the first n - 1 words in the level below
    suffix: np.ndarray  # (K,) row of the last n - 1 words in the level below
    word: np.ndarray  # (K,)
    occurrences: np.ndarray  # (K,)
    first_word: np.ndarray  # (K,)


def _count(text: _Text, order: int) -> list[_Level]:
    """One sort per order: the key of an n-gram is (row of its prefix) * V + its last word."""
    V = len(text.words)
    zeros_V = np.zeros(V, dtype=np.int64)
    numbers_V = np.arange(V)
    counts_V = np.bincount(text.tokens, minlength=V)
    levels = [_Level(zeros_V, zeros_V, numbers_V, counts_V, numbers_V)]
    row_T = text.tokens  # row of the (n - 1)-gram that ends at each token, -1 if a sentence is too short
    for _ in range(2, order + 1):
        before_T = np.where(text.first, -1, np.roll(row_T, 1))
        at = np.flatnonzero(before_T >= 0)
        keys, first_at, rows, counts = np.unique(
            before_T[at] * V + text.tokens[at], return_index=True, return_inverse=True, return_counts=True
        )
        prefix = keys // V
        suffix = row_T[at[first_at]]
        levels.append(_Level(prefix, suffix, keys % V, counts, levels[-1].first_word[prefix]))
        row_T = np.full(len(text.tokens), -1)
        row_T[at] = rows
    return levels


def _estimate(
    words: tuple[str, ...], levels: list[_Level], cutoffs: tuple[int, ...]
) -> tuple[NgramModel, tuple[tuple[float, float, float], ...], tuple[int, ...]]:
    V = len(words)
    kept_below = np.zeros(1, dtype=np.int64)  # new rows of the order below, -1 for removed rows
    prob_below = np.array([1.0 / (V - 1)])  # the uniform distribution: `<s>` is never predicted
    orders: list[Grams] = []
    discounts, fell_back = [], []
    for n, (level, cutoff) in enumerate(zip(levels, cutoffs, strict=True), 1):
        counts = _counts_to_discount(levels, n)
        D, usable = _discounts(counts)
        discounts.append(D)
        fell_back += [] if usable else [n]
        keep = (level.occurrences > cutoff) | (n == 1)
        contexts = len(prob_below)
        total = np.bincount(level.prefix, counts, minlength=contexts)
        taken = np.where(keep, np.minimum(np.array((0.0, *D))[np.minimum(counts, 3)], counts), counts)
        with np.errstate(invalid="ignore", divide="ignore"):
            gamma = np.where(total > 0, np.bincount(level.prefix, taken, minlength=contexts) / total, 1.0)
            share = np.where(total[level.prefix] > 0, (counts - taken) / total[level.prefix], 0.0)
        prob = share + gamma[level.prefix] * prob_below[level.suffix]
        if n > 1:  # 1 if nothing follows, as after `</s>`
            orders[-1] = replace(orders[-1], log10_backoff=np.log10(gamma[kept_below >= 0]).astype(np.float32))
        orders.append(_grams(kept_below[level.prefix[keep]], level.word[keep], prob[keep]))
        kept_below = np.where(keep, np.cumsum(keep) - 1, -1)
        prob_below = prob
    return NgramModel(words, tuple(orders)), tuple(discounts), tuple(fell_back)


def _counts_to_discount(levels: list[_Level], n: int) -> np.ndarray:
    """Occurrences at the highest order and after `<s>`, else the number of different words in front; none of `<s>`."""
    level = levels[n - 1]
    if n == len(levels):
        counts = level.occurrences.copy()
    else:
        in_front = np.bincount(levels[n].suffix, minlength=len(level.word))
        counts = np.where(level.first_word == 1, level.occurrences, in_front)
    counts[level.word == 1] = 0
    return counts


def _discounts(counts: np.ndarray) -> tuple[tuple[float, float, float], bool]:
    """D_k = k - (k + 1) Y n_{k+1} / n_k with Y = n1 / (n1 + 2 n2); False if the counts of counts allow none."""
    n1, n2, n3, n4 = (int(np.count_nonzero(counts == k)) for k in (1, 2, 3, 4))
    if not min(n1, n2, n3):
        return _FALLBACK, False
    Y = n1 / (n1 + 2 * n2)
    D = (1 - 2 * Y * n2 / n1, 2 - 3 * Y * n3 / n2, 3 - 4 * Y * n4 / n3)
    return (D, True) if min(D) > 0 else (_FALLBACK, False)


def _grams(prefix: np.ndarray, word: np.ndarray, prob: np.ndarray) -> Grams:
    unpredicted = word == 1
    log10_prob = np.log10(np.where(unpredicted, 1.0, prob))
    log10_prob[unpredicted] = _LOG10_OF_START
    return Grams(prefix, word, log10_prob.astype(np.float32), np.zeros(len(word), dtype=np.float32))
