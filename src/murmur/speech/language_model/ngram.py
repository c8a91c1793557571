"""Back-off n-gram models as sorted arrays, the perplexity of text, and pruning.

p(w | h) = prob[h w] if the model lists h w, else backoff[h] * p(w | h without its first word); logarithms are to
base 10, as in ARPA files. An n-gram is the pair (row of its first n - 1 words in the order below, its last word), so
the lookup of a whole text is one binary search per order.

K n-grams of one order n, T tokens of a text. Row -1 means: not listed.

Pruning is by relative entropy: A. Stolcke, "Entropy-based pruning of backoff language models", DARPA Broadcast News
Workshop (1998), section 3. Leaving out the n-gram h w changes the model by

    D = - p(h) { p(w|h) [log p(w|h') + log a'(h) - log p(w|h)] + [log a'(h) - log a(h)] (1 - s(h)) }

with s(h) the sum of p(v|h) over the words v listed after h, a the back-off weight and a' the one without h w; the
n-gram is removed if the training perplexity rises by less than the threshold, exp(D) - 1. p(h) is the model's own.
Kneser-Ney models suffer more than others, since their lower orders are not estimates of p(h) (Chelba et al.,
Interspeech 2010): judge by perplexity.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from murmur.core.counted import counted

START, END = "<s>", "</s>"
UNKNOWN = "<unk>"
UNKNOWN_NAMES = (UNKNOWN, "<UNK>")
NEVER = 1e-99  # weight of a back-off that cannot be taken
_TINY = 1e-7  # below the rounding of float32 sums near 1


def words_of(sentence: str) -> list[str]:
    """The words of a sentence, in Unicode form NFC."""
    return unicodedata.normalize("NFC", sentence).split()


def sizes(ngrams: Sequence[int]) -> str:
    """Return the numbers of n-grams of a model per order, as a text."""
    counts = ", ".join(counted(number, f"{n}-gram") for n, number in enumerate(ngrams, 1))
    return f"{counted(ngrams[0], 'word')}; {counts}"


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

    def __str__(self) -> str:
        return sizes([len(grams) for grams in self.orders])

    @property
    def order(self) -> int:
        """Longest n-gram, in words."""
        return len(self.orders)

    @cached_property
    def number_of(self) -> dict[str, int]:
        """Word numbers, the inverse of `words`."""
        return {word: n for n, word in enumerate(self.words)}

    @property
    def unknown(self) -> int:
        """Number of the word for words outside the vocabulary, `<unk>` or `<UNK>`; -1 in a closed vocabulary."""
        return next((self.number_of[name] for name in UNKNOWN_NAMES if name in self.number_of), -1)

    def check_marks(self) -> None:
        """Raise ValueError if the model lacks `<s>` or `</s>`."""
        if missing := [mark for mark in (START, END) if mark not in self.number_of]:
            raise ValueError(f"the language model has no {' and no '.join(missing)}: train it on whole sentences")

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

    def log10_probs(self, word_T: np.ndarray, first_T: np.ndarray) -> np.ndarray:
        """log10 p of each token given the tokens before it in its sentence; nan for a token that is -1 (unknown).

        No n-gram crosses a token marked in `first_T`.
        """
        rows, histories = [word_T], list[np.ndarray]()  # per order, of the n-gram that ends at each token
        for n in range(2, self.order + 1):
            histories.append(np.where(first_T, -1, np.roll(rows[-1], 1)))
            rows.append(self.find(n, histories[-1], word_T))
        log10_T = np.zeros(len(word_T))
        open_T = np.ones(len(word_T), dtype=bool)
        for n in range(self.order, 0, -1):
            found_T = open_T & (rows[n - 1] >= 0)
            log10_T[found_T] += self.orders[n - 1].log10_prob[rows[n - 1][found_T]]
            open_T &= ~found_T
            if n > 1:
                history_T = histories[n - 2]
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
        unknown = self.unknown
        numbers = []
        for sentence in sentences:
            words = words_of(sentence)
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
    model.check_marks()
    word_T, first_T = model.numbers_of(sentences)
    if not len(word_T):
        raise ValueError("no sentence to score: give at least one line of text")
    log10_T = model.log10_probs(word_T, first_T)[~first_T]
    scored_T = ~np.isnan(log10_T)
    unknown_T = word_T[~first_T] == model.unknown
    count = int(first_T.sum())
    return Perplexity(
        sentences=count,
        words=len(word_T) - 2 * count,
        unknown_words=int(unknown_T.sum()),
        scored_tokens=int(scored_T.sum()),
        log10_prob=float(log10_T[scored_T].sum()),
        log10_prob_known=float(log10_T[scored_T & ~unknown_T].sum()),
    )


def prune(model: NgramModel, threshold: float) -> NgramModel:
    """Leave out n-grams of two words and more whose loss raises perplexity by less than `threshold` (say 1e-8).

    Prefixes of longer n-grams that remain are kept. Back-off weights are computed again, so that probabilities still
    sum to one if they did before. Raises ValueError for a threshold below 0, or a model without sentence marks.
    """
    if not threshold >= 0:
        raise ValueError(f"pruning threshold {threshold}: give a relative rise of perplexity, 0 or more")
    model.check_marks()
    keep = [np.ones(len(grams), dtype=bool) for grams in model.orders]
    for n in range(model.order, 1, -1):
        needed = np.zeros(len(model.orders[n - 1]), dtype=bool)
        if n < model.order:
            needed[model.orders[n].prefix[keep[n]]] = True
        keep[n - 1] = needed | (_perplexity_rise(model, n) >= threshold)
    return with_normalised_backoff(select_rows(model, keep))


def with_normalised_backoff(model: NgramModel) -> NgramModel:
    """The model with a(h) = (1 - sum of p(w|h)) / (1 - sum of p(w|h')) over the listed words w after each h.

    Words that leave nothing to others get a weight of 10^-99, as in other tools; after words of which the shorter
    history leaves nothing, there is nothing to weigh.
    """
    for n in range(1, model.order):
        numerator, denominator = _left_over(model, n + 1)
        followed = np.bincount(model.orders[n].prefix, minlength=len(model.orders[n - 1])) > 0
        usable = followed & (numerator > _TINY) & (denominator > _TINY)
        nothing_left = np.where(followed & (denominator > _TINY), NEVER, 1.0)
        weight = np.where(usable, numerator / np.where(usable, denominator, 1.0), nothing_left)
        changed = replace(model.orders[n - 1], log10_backoff=np.log10(weight).astype(np.float32))
        model = NgramModel(model.words, (*model.orders[: n - 1], changed, *model.orders[n:]))
    return model


def _perplexity_rise(model: NgramModel, n: int) -> np.ndarray:
    """(K,) exp(D) - 1 for each n-gram of n words."""
    grams, below = model.orders[n - 1], model.orders[n - 2]
    ids_Kn = _word_numbers(model.orders, n)
    log10_Kh = _all_words(model, ids_Kn[:, :-1])
    log10_Kh[ids_Kn[:, 0] == model.number_of[START], 0] = 0.0  # certain
    log_h = _ln(log10_Kh.sum(axis=1))
    log_p = _ln(grams.log10_prob)
    log_p_lower = _ln(_all_words(model, ids_Kn[:, 1:])[:, -1])
    numerator, denominator = _left_over(model, n)
    row = grams.prefix
    log_alpha = _ln(below.log10_backoff)[row]
    without = np.maximum(numerator[row], 0) + np.exp(log_p)
    log_alpha_without = np.log(without) - np.log(np.maximum(denominator[row], 0) + np.exp(log_p_lower))
    of_word = np.exp(log_p) * (log_p_lower + log_alpha_without - log_p)
    of_others = (log_alpha_without - log_alpha) * np.maximum(numerator[row], 0)
    return np.expm1(-np.exp(log_h) * (of_word + of_others))


def _left_over(model: NgramModel, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Per history of n - 1 words: one minus the sum of p(w|h), and of p(w|h'), over the words listed after it."""
    grams, histories = model.orders[n - 1], len(model.orders[n - 2])
    lower = np.exp(_ln(_all_words(model, _word_numbers(model.orders, n)[:, 1:])[:, -1]))
    listed = np.bincount(grams.prefix, np.exp(_ln(grams.log10_prob)), minlength=histories)
    return 1 - listed, 1 - np.bincount(grams.prefix, lower, minlength=histories)


def _word_numbers(orders: tuple[Grams, ...], n: int) -> np.ndarray:
    """(K, n) word numbers of the n-grams of n words."""
    ids = orders[0].word[:, None]
    for grams in orders[1:n]:
        ids = np.concatenate([ids[grams.prefix], grams.word[:, None]], axis=1)
    return ids


def _all_words(model: NgramModel, ids_Km: np.ndarray) -> np.ndarray:
    """(K, m) log10 probability of each word given those before it in its row."""
    first = np.zeros(ids_Km.shape, dtype=bool)
    first[:, 0] = True
    return model.log10_probs(ids_Km.ravel(), first.ravel()).reshape(ids_Km.shape)


def _ln(log10: np.ndarray) -> np.ndarray:
    return np.asarray(log10, dtype=np.float64) * np.log(10.0)
