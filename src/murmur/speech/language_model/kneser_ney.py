"""Interpolated modified Kneser-Ney language models.

Chen & Goodman, "An empirical study of smoothing techniques for language modeling", Computer Speech and Language 13
(1999), section 3 and equation 26:

    p(w | h) = max(c(h w) - D(c), 0) / c(h .) + gamma(h) p(w | h'),   gamma(h) = sum of all discounts of h / c(h .)

with h' = h without its first word, and D one of D1, D2, D3+ per order, from the counts of counts n1 ... n4. The
highest order and n-grams that begin with `<s>` use their number of occurrences; the others use the number of different
words before them. Unigrams are interpolated with the uniform distribution over all words but `<s>`.
A cut-off removes rare n-grams; all their count becomes back-off weight, so sums stay one.

K n-grams of an order, V words. N-grams are sorted tables (`columns`), so that a model may be larger than memory; blocks
hold all n-grams of a context, so that sums do not depend on the size of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from murmur.speech.language_model.arpa import Section, write_sections
from murmur.speech.language_model.columns import (
    Block,
    Columns,
    Scratch,
    SortedLookup,
    changes,
    grouped,
    joined,
    sorted_by_key,
)
from murmur.speech.language_model.ngram import UNKNOWN, Grams, NgramModel, sizes
from murmur.speech.language_model.ngram_counts import START_NUMBER, Level, NumberedWords, Packing, counted_levels

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

    def train(
        self, sentences: Iterable[str], vocabulary: Iterable[str] | None = None, most: int | None = None
    ) -> TrainedLanguageModel:
        """Estimate from sentences of space-separated words (NFC), with `<s>` and `</s>` added around each.

        The default `vocabulary` is all words of the text, or the `most` frequent ones. Words outside it count as
        `unknown`, and so does each of `<unk>` and `<UNK>`, unless the vocabulary is closed.

        Raises:
            ValueError: no sentence, a mark such as `<s>` inside one, or a word outside a closed vocabulary.
        """
        with Scratch() as scratch:
            counts = self._counted(sentences, vocabulary, most, scratch)
            orders, below = list[Grams](), np.zeros(0, dtype=np.uint64)
            for n, section in enumerate(counts.sections(), 1):
                *words, log10_prob, log10_backoff = joined([_no_rows(n), *((*w, p, a) for w, p, a in section)])
                keys = counts.packing.pack(words)
                prefix: np.ndarray = np.zeros_like(words[-1])
                if n > 1:
                    prefix = np.asarray(np.searchsorted(below, counts.packing.prefix(keys, n)))
                orders.append(Grams(prefix, words[-1], log10_prob, log10_backoff))
                below = keys
            return TrainedLanguageModel(**vars(counts.estimated), model=NgramModel(counts.text.words, tuple(orders)))

    def write(
        self,
        sentences: Iterable[str],
        path: Path,
        vocabulary: Iterable[str] | None = None,
        most: int | None = None,
        scratch: Scratch | None = None,
    ) -> EstimatedLanguageModel:
        """Write the ARPA file of the model that `train` estimates, byte for byte, within the memory of `scratch`.

        The words, and a part of the program, are held in memory besides. The file is whole, or not there.

        Raises:
            ValueError: as for `train`.
            OSError: the file or a temporary one cannot be written.
        """
        with scratch or Scratch() as opened:
            counts = self._counted(sentences, vocabulary, most, opened)
            write_sections(path, counts.text.words, counts.estimated.ngrams, counts.sections())
            return counts.estimated

    def _counted(
        self, sentences: Iterable[str], vocabulary: Iterable[str] | None, most: int | None, scratch: Scratch
    ) -> _Counts:
        text = NumberedWords.of(sentences, vocabulary, most, self.unknown, scratch)
        packing, levels = counted_levels(text, self.cutoffs or (0,) * self.order, scratch)
        return _Counts(text, packing, levels, scratch)


@dataclass(frozen=True, eq=False)
class EstimatedLanguageModel:
    """Facts of an estimated model; per order the number of n-grams and the discounts (D1, D2, D3+).

    `fell_back` lists orders without usable discounts from counts of counts (the text is tiny or artificial), for which
    (0.5, 1, 1.5) is used; `unknown_words` counts words of the text outside the vocabulary, `outside` lists them.
    """

    ngrams: tuple[int, ...]
    discounts: tuple[tuple[float, float, float], ...]
    fell_back: tuple[int, ...]
    unknown_words: int
    outside: tuple[str, ...]

    def __str__(self) -> str:
        return sizes(self.ngrams)


@dataclass(frozen=True, eq=False)
class TrainedLanguageModel(EstimatedLanguageModel):
    """An estimated model in memory."""

    model: NgramModel


class _Counts:
    """Counted n-grams, and the model that follows."""

    def __init__(self, text: NumberedWords, packing: Packing, levels: list[Level], scratch: Scratch) -> None:
        self.text, self.packing = text, packing
        self._levels, self._scratch = levels, scratch
        found = [_discounts(level.counts_of_counts) for level in levels]
        self.estimated = EstimatedLanguageModel(
            ngrams=tuple(level.kept for level in levels),
            discounts=tuple(D for D, _ in found),
            fell_back=tuple(n for n, (_, usable) in enumerate(found, 1) if not usable),
            unknown_words=text.unknown_words,
            outside=text.outside,
        )

    def sections(self) -> Iterator[Iterator[Section]]:
        """Yield the n-grams of each order in blocks: columns of words, log10 of probability and of back-off weight.

        An order is to be read before the next one is asked for.
        """
        below: Columns | None = None  # probabilities of the order below
        for level, D in zip(self._levels, self.estimated.discounts, strict=True):
            prob, gamma = Columns(self._scratch), Columns(self._scratch)
            prefix = partial(self.packing.prefix, n=level.n)
            for keys, counts, keep, lower in grouped(self._with_lower(level, below), prefix):
                contexts = prefix(keys)
                begins = changes(contexts)
                p, weight = _interpolated(counts, keep, np.cumsum(begins) - 1, lower, D)
                prob.append((p,))
                gamma.append((contexts[begins], weight))
            if below is not None:
                yield self._section(self._levels[level.n - 2], below, gamma)
            below = prob
        assert below is not None  # there is at least one order
        yield self._section(level, below, Columns(self._scratch))

    def _with_lower(self, level: Level, below: Columns | None) -> Iterator[Block]:
        """The n-grams of an order with the probability of each one's suffix."""
        if below is None:  # the uniform distribution: `<s>` is never predicted
            for keys, counts, keep in level.counts.blocks():
                yield keys, counts, keep, np.full(len(keys), 1.0 / (len(self.text.words) - 1))
            return
        shorter = self._levels[level.n - 2].counts.blocks()
        prob_of = SortedLookup(((k, p) for (k, _, _), (p,) in zip(shorter, below.blocks(), strict=True)), 0.0)
        lower = sorted_by_key(self._unrotated(level, prob_of), self._scratch)
        level.rotated.drop()
        for (keys, counts, keep), (_, p) in zip(level.counts.blocks(), lower.blocks(), strict=True):
            yield keys, counts, keep, p
        lower.drop()

    def _unrotated(self, level: Level, prob_of: SortedLookup) -> Iterator[Block]:
        for (rotated,) in level.rotated.blocks():
            *suffix, first = self.packing.unpack(rotated, level.n)
            yield self.packing.pack([first, *suffix]), prob_of(self.packing.prefix(rotated, level.n))

    def _section(self, level: Level, prob: Columns, gamma: Columns) -> Iterator[Section]:
        """N-grams that no cut-off removes; the weight is 1 if nothing follows, as after `</s>`."""
        weight_of = SortedLookup(gamma.blocks(), 1.0)
        rows = zip(level.counts.blocks(), prob.blocks(), strict=True)
        for (keys, _, keep), (p,) in self._scratch.watched(rows, f"{level.n}-grams", level.counts.rows):
            words = self.packing.unpack(keys[keep], level.n)
            unpredicted = words[-1] == START_NUMBER
            log10_prob = np.log10(np.where(unpredicted, 1.0, p[keep]))
            log10_prob[unpredicted] = _LOG10_OF_START
            log10_backoff = np.log10(weight_of(keys[keep]))
            yield words, log10_prob.astype(np.float32), log10_backoff.astype(np.float32)
        prob.drop()
        gamma.drop()


def _interpolated(
    counts: np.ndarray, keep: np.ndarray, context: np.ndarray, lower: np.ndarray, D: tuple[float, float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Equation 26: p of each n-gram, and gamma of each context, given the p of its suffix."""
    taken = np.where(keep, np.minimum(np.array((0.0, *D))[np.minimum(counts, 3)], counts), counts)
    total = np.bincount(context, counts)
    with np.errstate(invalid="ignore", divide="ignore"):
        gamma = np.where(total > 0, np.bincount(context, taken) / total, 1.0)
        share = np.where(total[context] > 0, (counts - taken) / total[context], 0.0)
    return share + gamma[context] * lower, gamma


def _discounts(counts_of_counts: tuple[int, ...]) -> tuple[tuple[float, float, float], bool]:
    """D_k = k - (k + 1) Y n_{k+1} / n_k with Y = n1 / (n1 + 2 n2); False if the counts of counts allow none."""
    n1, n2, n3, n4 = counts_of_counts
    if not min(n1, n2, n3):
        return _FALLBACK, False
    Y = n1 / (n1 + 2 * n2)
    D = (1 - 2 * Y * n2 / n1, 2 - 3 * Y * n3 / n2, 3 - 4 * Y * n4 / n3)
    return (D, True) if min(D) > 0 else (_FALLBACK, False)


def _no_rows(n: int) -> Block:
    return (*(np.zeros(0, dtype=np.int64) for _ in range(n)), *(np.zeros(0, dtype=np.float32) for _ in range(2)))
