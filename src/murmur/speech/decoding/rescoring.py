"""Rescoring of n-best lists with a second language model, interpolated with the n-gram model of the search.

A hypothesis of words w_1 ... w_(L-1) and the end w_L = </s> has the cost of the search, in which the n-gram model is
replaced by a mixture:

    cost' = cost + sum over l of ln p_n(w_l | h) - ln((1 - a) p_n(w_l | h) + a p_r(w_l | h)),   0 <= a <= 1

p_n: n-gram model, p_r: rescoring model, a: weight. Acoustic scores, pronunciations and word costs are those of the
search. With a = 0, or with equal models, costs are unchanged. The search can reach a word by the back-off of the n-gram
model even if the model has the n-gram, and then counts a probability above p_n; such a difference stays in cost'.

The rescoring model knows other words than the search. Its probability of <unk> is shared equally among the words of
the search that it does not know; words of its own that the search cannot output keep theirs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from murmur.speech.decoding.decoder import Hypothesis
from murmur.speech.language_model.ngram import END, START, NgramModel
from murmur.speech.language_model.word_lstm import UNKNOWN_NUMBER, LstmLanguageModel, WordNumbers, token_log_probs

Words = tuple[str, ...]


class TokenScores(Protocol):
    """A language model that scores sentences."""

    def log_probs(self, sentences: Sequence[Words]) -> list[np.ndarray]:
        """ln p of the words of each sentence and of its end."""


@dataclass(frozen=True, eq=False)
class NgramScores:
    """Scores of a back-off model.

    Raises:
        ValueError: a word is not in the model, and the model has no unknown word.
    """

    model: NgramModel

    def log_probs(self, sentences: Sequence[Words]) -> list[np.ndarray]:
        """ln p of the words of each sentence and of its end."""
        word_T, first_T = self.model.numbers_of(" ".join(words) for words in sentences)
        ln_T = self.model.log10_probs(word_T, first_T) * math.log(10)
        if np.isnan(ln_T[~first_T]).any():
            missing = {word for words in sentences for word in words}.difference(self.model.words, (START, END))
            raise ValueError(f"the n-gram model has no {sorted(missing)[:5]}: it is not the model of the search")
        return np.split(ln_T[~first_T], np.cumsum([len(words) + 1 for words in sentences])[:-1])


@dataclass(frozen=True, eq=False)
class LstmScores:
    """Scores of an LSTM for the words of a search.

    Attributes:
        model: the LSTM.
        words: its words.
        sayable: words that the search may output.
    """

    model: LstmLanguageModel
    words: WordNumbers
    sayable: Collection[str]

    @cached_property
    def unseen(self) -> tuple[str, ...]:
        """Words of the search that the model does not know, in byte order; they share the probability of <unk>."""
        known = self.words.number_of
        return tuple(sorted((word for word in self.sayable if word not in known), key=str.encode))

    def log_probs(self, sentences: Sequence[Words]) -> list[np.ndarray]:
        """ln p of the words of each sentence and of its end."""
        known = self.words.number_of
        numbers = [np.array([known.get(word, UNKNOWN_NUMBER) for word in words], np.int64) for words in sentences]
        found = token_log_probs(self.model, numbers)
        share = math.log(max(1, len(self.unseen)))
        for ln_L, numbers_L in zip(found, numbers, strict=True):
            ln_L[:-1][numbers_L == UNKNOWN_NUMBER] -= share
        return found


@dataclass(frozen=True, eq=False)
class Scored:
    """An n-best list with the scores of both language models.

    Attributes:
        hypotheses: the list, best first.
        ngram: ln p by the n-gram model of the words and the end of each hypothesis.
        other: the same by the rescoring model.
    """

    hypotheses: tuple[Hypothesis, ...]
    ngram: tuple[np.ndarray, ...]
    other: tuple[np.ndarray, ...]

    def costs(self, weight: float) -> list[float]:
        """Cost of each hypothesis with the mixture.

        A hypothesis that ended outside a final state has no cost of a sentence end, so this term is left out.

        Raises:
            ValueError: the weight is not in [0, 1].
        """
        if not 0 <= weight <= 1:
            raise ValueError(f"the weight of the rescoring model is a number from 0 to 1, got {weight}")
        return [
            hypothesis.cost
            + float(np.sum((ngram_L - _mixed(ngram_L, other_L, weight))[: None if hypothesis.complete else -1]))
            for hypothesis, ngram_L, other_L in zip(self.hypotheses, self.ngram, self.other, strict=True)
        ]

    def best(self, weight: float) -> Hypothesis:
        """The hypothesis of the least cost; among equal ones that of the search."""
        costs = self.costs(weight)
        return self.hypotheses[costs.index(min(costs))]


def _mixed(ngram_L: np.ndarray, other_L: np.ndarray, weight: float) -> np.ndarray:
    """ln of the mixture, exact at both ends."""
    if weight in (0, 1):
        return ngram_L if weight == 0 else other_L
    return np.logaddexp(ngram_L + math.log1p(-weight), other_L + math.log(weight))


def scored(listed: Sequence[Hypothesis], ngram: TokenScores, other: TokenScores) -> Scored:
    """Score an n-best list with both models."""
    sentences = [hypothesis.words for hypothesis in listed]
    return Scored(tuple(listed), tuple(ngram.log_probs(sentences)), tuple(other.log_probs(sentences)))
