"""LSTM language models over words (Mikolov et al. 2010; Sundermeyer, Schlueter and Ney 2012).

    ln P(w_1 ... w_L) = sum over l of ln p(w_l | w_1 ... w_(l-1)),   w_L = </s>
    p(. | history) = softmax(U r + b),   r = R h or h,   h: output of the LSTM layers at the last word of the history

With tied embeddings U is the matrix of the input embeddings (Press and Wolf 2017; Inan, Khosravi and Socher 2017), and
R brings h to its width. A sentence begins with the input `</s>` and a zero state, and depends on no other sentence.

Word number 0 is `</s>`, number 1 is `<unk>`, which stands for all words outside the vocabulary.

Shapes: N sentences, L tokens (padded), V words, E embedding values, H cells, M tokens that count, T words of a text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from murmur.core.model_mode import evaluating
from murmur.speech.features.batching import UtteranceBatches
from murmur.speech.language_model.ngram import END, START, UNKNOWN, UNKNOWN_NAMES, Perplexity, words_of
from murmur.speech.language_model.ngram_counts import frequent_words

BOUNDARY_NUMBER, UNKNOWN_NUMBER = 0, 1
PADDING = -100  # target of a place behind the end of a sentence
LOGITS_AT_ONCE = 1 << 23  # without gradients: 32 MB
SENTENCES_AT_ONCE = 64
MOST_LAYERS = 1000  # each is made before sizes are compared with those of a file
_EMBEDDING_RANGE = 0.1


@dataclass(frozen=True)
class WordNumbers:
    """A vocabulary.

    Attributes:
        words: the words in the order of their numbers, `</s>` and `<unk>` first.

    Raises:
        ValueError: another beginning, a repeated word, or one with white space.
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[:2] != (END, UNKNOWN) or START in self.words:
            raise ValueError(f"a vocabulary begins with {END} and {UNKNOWN} and has no {START}, got {self.words[:3]}")
        if len(set(self.words)) < len(self.words):
            repeated = [word for word, count in Counter(self.words).items() if count > 1]
            raise ValueError(f"the vocabulary holds {repeated[0]!r} more than once")
        if bad := [word for word in self.words if word.split() != [word]]:
            raise ValueError(f"{bad[0]!r} is not one word: a vocabulary has one word a line")

    @staticmethod
    def frequent(sentences: Iterable[str], most: int | None = None, min_count: int = 1) -> WordNumbers:
        """Words that occur at least `min_count` times, at most the `most` frequent ones; ties in code-point order.

        Raises:
            ValueError: a sentence mark inside a sentence.
        """
        ranked = [word for word in frequent_words(sentences, None, min_count) if word not in UNKNOWN_NAMES]
        if inside := sorted({START, END}.intersection(ranked)):
            raise ValueError(f"the text holds {', '.join(inside)}: sentence marks are put there by training")
        return WordNumbers((END, UNKNOWN, *ranked[:most]))

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def number_of(self) -> dict[str, int]:
        """Word numbers, the inverse of `words`."""
        return {word: number for number, word in enumerate(self.words)}

    def numbered(self, sentences: Iterable[str]) -> NumberedText:
        """Sentences of space-separated words as numbers; all words outside the vocabulary are `<unk>`."""
        known = self.number_of
        rows = [[known.get(word, UNKNOWN_NUMBER) for word in words_of(sentence)] for sentence in sentences]
        ends_N = np.cumsum([len(row) for row in rows], dtype=np.int64)
        return NumberedText(np.array([n for row in rows for n in row], dtype=np.int32), ends_N)


@dataclass(frozen=True, eq=False)
class NumberedText:
    """Sentences without marks in one array."""

    numbers: np.ndarray  # (T,) int32 word numbers
    ends: np.ndarray  # (N,) end of each sentence in `numbers`

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, sentence: int) -> np.ndarray:
        """Word numbers of a sentence."""
        first = 0 if sentence == 0 else int(self.ends[sentence - 1])
        return self.numbers[first : int(self.ends[sentence])]

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """Predicted tokens of each sentence: its words and `</s>`."""
        return tuple((np.diff(self.ends, prepend=0) + 1).tolist())


@dataclass(frozen=True)
class WordLstm:
    """Size of an LSTM language model.

    Attributes:
        embedding: values E of the vector of a word.
        hidden: LSTM cells H per layer.
        layers: number of LSTM layers.
        dropout: share of the embeddings and of every layer's outputs that is set to zero during training.
        tied: True if the output layer shares its matrix with the input embeddings.
    """

    embedding: int = 256
    hidden: int = 256
    layers: int = 1
    dropout: float = 0.2
    tied: bool = True

    def __post_init__(self) -> None:
        if min(self.embedding, self.hidden, self.layers) < 1 or not 0 <= self.dropout < 1:
            raise ValueError(f"{self}: sizes must be at least 1, and dropout at least 0 and below 1")
        if self.layers > MOST_LAYERS:
            raise ValueError(f"{self.layers} layers are more than {MOST_LAYERS}")

    def build(self, words: int) -> LstmLanguageModel:
        """A module for V words."""
        return LstmLanguageModel(words, self)


@dataclass(frozen=True)
class Sentences:
    """Padded sentences."""

    inputs: Tensor  # (N, L) word numbers, `</s>` first
    targets: Tensor  # (N, L) the next words, `</s>` last; -100 behind the end of a sentence
    tokens: int  # number M of targets


def padded(sentences: Sequence[np.ndarray]) -> Sentences:
    """Sentences of word numbers without marks as one minibatch."""
    longest = 1 + max(map(len, sentences))
    inputs_NL = np.full((len(sentences), longest), BOUNDARY_NUMBER, np.int64)
    targets_NL = np.full((len(sentences), longest), PADDING, np.int64)
    for inputs_L, targets_L, words in zip(inputs_NL, targets_NL, sentences, strict=True):
        inputs_L[1 : len(words) + 1] = words
        targets_L[: len(words)] = words
        targets_L[len(words)] = BOUNDARY_NUMBER
    tokens = sum(len(words) + 1 for words in sentences)
    return Sentences(torch.from_numpy(inputs_NL), torch.from_numpy(targets_NL), tokens)


class LstmLanguageModel(nn.Module):
    """The module of `WordLstm`: inputs_NL to logits_NLV."""

    def __init__(self, words: int, config: WordLstm) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, config.embedding)
        self.dropout = nn.Dropout(config.dropout)
        between = config.dropout if config.layers > 1 else 0.0
        self.lstm = nn.LSTM(config.embedding, config.hidden, config.layers, batch_first=True, dropout=between)
        narrows = config.tied and config.hidden != config.embedding
        self.narrow = nn.Linear(config.hidden, config.embedding, bias=False) if narrows else None
        self.output = None if config.tied else nn.Linear(config.hidden, words, bias=False)
        self.bias = nn.Parameter(torch.zeros(words))
        self.reset_parameters(config)

    def reset_parameters(self, config: WordLstm) -> None:
        """Draw small embeddings, and set forget gate biases to 1 in total (Jozefowicz et al. 2015)."""
        with torch.no_grad():
            self.embedding.weight.uniform_(-_EMBEDDING_RANGE, _EMBEDDING_RANGE)
            for layer in range(config.layers):
                getattr(self.lstm, f"bias_ih_l{layer}")[config.hidden : 2 * config.hidden].fill_(1.0)
                getattr(self.lstm, f"bias_hh_l{layer}")[config.hidden : 2 * config.hidden].fill_(0.0)

    def forward(self, inputs_NL: Tensor) -> Tensor:
        """logits_NLV of the words that follow the inputs."""
        return self.logits(self.histories(inputs_NL))

    def histories(self, inputs_NL: Tensor) -> Tensor:
        """Outputs of the LSTM layers, (N, L, H)."""
        hidden_NLH, _ = self.lstm(self.dropout(self.embedding(inputs_NL)))
        return self.dropout(hidden_NLH)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., H) to logits (..., V)."""
        narrowed = hidden if self.narrow is None else self.narrow(hidden)
        weight_VE = self.embedding.weight if self.output is None else self.output.weight
        return functional.linear(narrowed, weight_VE, self.bias)

    def log_probs(self, batch: Sentences) -> Tensor:
        """ln p of each target given the words before it, (M,), sentence after sentence.

        Without gradients, logits are computed for some tokens at a time, so that memory does not grow with M.
        """
        device = self.bias.device
        targets_NL = batch.targets.to(device)
        counts_NL = targets_NL != PADDING
        hidden_MH, targets_M = self.histories(batch.inputs.to(device))[counts_NL], targets_NL[counts_NL]
        at_once = len(targets_M) if torch.is_grad_enabled() else max(1, LOGITS_AT_ONCE // len(self.bias))
        parts = zip(hidden_MH.split(at_once), targets_M.split(at_once), strict=True)
        return -torch.cat([functional.cross_entropy(self.logits(h), t, reduction="none") for h, t in parts])


def token_log_probs(
    model: LstmLanguageModel, sentences: Sequence[np.ndarray], at_once: int = SENTENCES_AT_ONCE
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
    log10_N = [part / math.log(10) for part in token_log_probs(model, [text[n] for n in range(len(text))])]
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
