"""Probabilities of texts under an LSTM language model: sentence by sentence, and as a perplexity."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from murmur.core.model_mode import evaluating
from murmur.speech.features.batching import UtteranceBatches
from murmur.speech.language_model.ngram import Perplexity
from murmur.speech.language_model.word_lstm import LstmLanguageModel, padded
from murmur.speech.language_model.word_numbers import UNKNOWN_NUMBER, NumberedText

AT_ONCE = 64  # sentences


def token_log_probs(
    model: LstmLanguageModel, sentences: Sequence[np.ndarray], at_once: int = AT_ONCE
) -> list[np.ndarray]:
    """ln p of the words of each sentence and of its `</s>`, float64 arrays in the order of the sentences.

    Args:
        model: language model.
        sentences: word numbers without marks.
        at_once: sentences of similar length in one call of the model.
    """
    found: dict[int, np.ndarray] = {}
    if sentences:
        groups = UtteranceBatches(tuple(len(words) + 1 for words in sentences), at_once).in_order()
        with evaluating(model), torch.no_grad():
            for group in groups:
                chosen = [sentences[i] for i in group]
                log_probs_M = model.log_probs(padded(chosen)).double().cpu().numpy()
                ends = np.cumsum([len(words) + 1 for words in chosen])
                found.update(zip(group, np.split(log_probs_M, ends[:-1]), strict=True))
    return [found[i] for i in range(len(sentences))]


def perplexity_of(model: LstmLanguageModel, text: NumberedText) -> Perplexity:
    """Perplexity of a text, with `</s>` predicted at each end and `<unk>` as one word.

    Raises:
        ValueError: the text has no sentence.
    """
    if not len(text):
        raise ValueError("no sentence to score: give at least one line of text")
    log10_N = [part / math.log(10) for part in token_log_probs(model, text.every())]
    unknown_T = text.numbers == UNKNOWN_NUMBER
    words_T = np.concatenate([part[:-1] for part in log10_N])
    total = float(sum(part.sum() for part in log10_N))
    return Perplexity(
        sentences=len(text),
        words=len(text.numbers),
        unknown_words=int(unknown_T.sum()),
        scored_tokens=sum(text.tokens),
        log10_prob=total,
        log10_prob_known=total - float(words_T[unknown_T].sum()),
    )
