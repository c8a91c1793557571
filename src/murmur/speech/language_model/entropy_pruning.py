"""Relative-entropy pruning of back-off models.

A. Stolcke, "Entropy-based pruning of backoff language models", DARPA Broadcast News Workshop (1998), section 3: leaving
out the n-gram h w changes the model by

    D = - p(h) { p(w|h) [log p(w|h') + log a'(h) - log p(w|h)] + [log a'(h) - log a(h)] (1 - s(h)) }

with s(h) the sum of p(v|h) over the words v listed after h, a the back-off weight and a' the one without h w; the
n-gram is removed if the training perplexity rises by less than the threshold, exp(D) - 1. p(h) is the model's own.
Kneser-Ney models suffer more than others, since their lower orders are not estimates of p(h) (Chelba et al.,
Interspeech 2010): judge by perplexity.

K n-grams of an order n.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from murmur.speech.language_model.ngram import END, START, Grams, NgramModel, select_rows

NEVER = 1e-99  # weight of a back-off that cannot be taken
_TINY = 1e-7  # below the rounding of float32 sums near 1


def prune(model: NgramModel, threshold: float) -> NgramModel:
    """Leave out n-grams of two words and more whose loss raises perplexity by less than `threshold` (say 1e-8).

    Prefixes of longer n-grams that remain are kept. Back-off weights are computed again, so that probabilities still
    sum to one if they did before. Raises ValueError for a threshold below 0, or a model without sentence marks.
    """
    if not threshold >= 0:
        raise ValueError(f"pruning threshold {threshold}: give a relative rise of perplexity, 0 or more")
    if START not in model.number_of or END not in model.number_of:
        raise ValueError(f"the model lacks {START} or {END}: pruning needs the probability of whole histories")
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
    log_h = _log_prob_of_history(model, ids_Kn)
    log_p = _ln(grams.log10_prob)
    log_p_lower = _ln(_last_word(model, ids_Kn[:, 1:]))
    numerator, denominator = _left_over(model, n)
    row = grams.prefix
    log_alpha = _ln(below.log10_backoff)[row]
    without = np.maximum(numerator[row], 0) + np.exp(log_p)
    log_alpha_without = np.log(without) - np.log(np.maximum(denominator[row], 0) + np.exp(log_p_lower))
    change = log_alpha_without - log_alpha
    D = -np.exp(log_h) * (
        np.exp(log_p) * (log_p_lower + log_alpha_without - log_p) + change * np.maximum(numerator[row], 0)
    )
    return np.expm1(D)


def _left_over(model: NgramModel, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Per history of n - 1 words: one minus the sum of p(w|h), and of p(w|h'), over the words listed after it."""
    grams, histories = model.orders[n - 1], len(model.orders[n - 2])
    lower = np.exp(_ln(_last_word(model, _word_numbers(model.orders, n)[:, 1:])))
    listed = np.bincount(grams.prefix, np.exp(_ln(grams.log10_prob)), minlength=histories)
    return 1 - listed, 1 - np.bincount(grams.prefix, lower, minlength=histories)


def _word_numbers(orders: tuple[Grams, ...], n: int) -> np.ndarray:
    """(K, n) word numbers of the n-grams of n words."""
    ids = orders[0].word[:, None]
    for grams in orders[1:n]:
        ids = np.concatenate([ids[grams.prefix], grams.word[:, None]], axis=1)
    return ids


def _last_word(model: NgramModel, ids_Km: np.ndarray) -> np.ndarray:
    """(K,) log10 probability of the last of m words given the others."""
    return _all_words(model, ids_Km)[:, -1]


def _log_prob_of_history(model: NgramModel, ids_Kn: np.ndarray) -> np.ndarray:
    """(K,) natural log p of all words but the last; `<s>` at the beginning is certain."""
    log10_Kh = _all_words(model, ids_Kn[:, :-1])
    log10_Kh[ids_Kn[:, 0] == model.number_of[START], 0] = 0.0
    return _ln(log10_Kh.sum(axis=1))


def _all_words(model: NgramModel, ids_Km: np.ndarray) -> np.ndarray:
    """(K, m) log10 probability of each word given those before it in its row."""
    first = np.zeros(ids_Km.shape, dtype=bool)
    first[:, 0] = True
    return model.log10_probs(ids_Km.ravel(), first.ravel()).reshape(ids_Km.shape)


def _ln(log10: np.ndarray) -> np.ndarray:
    return np.asarray(log10, dtype=np.float64) * np.log(10.0)
