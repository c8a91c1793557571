"""LSTM language models over words (Mikolov et al. 2010; Sundermeyer, Schlueter and Ney 2012).

    ln P(w_1 ... w_L) = sum over l of ln p(w_l | w_1 ... w_(l-1)),   w_L = </s>
    p(. | history) = softmax(U r + b),   r = R h or h,   h: output of the LSTM layers at the last word of the history

With tied embeddings U is the matrix of the input embeddings (Press and Wolf 2017; Inan, Khosravi and Socher 2017), and
R brings h to its width. A sentence begins with the input `</s>` and a zero state, and depends on no other sentence.

Shapes: N sentences, L tokens (padded), V words, E embedding values, H cells, M tokens that count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from murmur.speech.language_model.word_numbers import BOUNDARY_NUMBER

PADDING = -100  # target of a place behind the end of a sentence
LOGITS_AT_ONCE = 1 << 23  # without gradients: 32 MB
MOST_LAYERS = 1000  # each is made before sizes are compared with those of a file
_EMBEDDING_RANGE = 0.1


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
    """Padded sentences.

    Attributes:
        inputs: (N, L) word numbers, `</s>` first.
        targets: (N, L) the next words, `</s>` last; -100 behind the end of a sentence.
        tokens: number M of targets.
    """

    inputs: Tensor
    targets: Tensor
    tokens: int


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
