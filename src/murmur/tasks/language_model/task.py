"""Training of an LSTM language model as a task of the engine, on any text of one sentence a line.

    murmur train lm --set task.text=FILE                              (a file, .txt or .txt.gz, or a folder of them)
    murmur train lm --set task.corpus=FOLDER                          (its lm_text, else its transcripts)
    murmur train librispeech_lm --set task.corpus=FOLDER --set task.text=FILE --learners 2

The loss is -ln P(sentence) in nats, summed over words and ends of sentences; these tokens are the samples.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import nn

from murmur.engine.experiment import ADDED
from murmur.engine.task import Loss, Score
from murmur.speech.corpus.published.transcripts import Writing
from murmur.speech.features.batching import UtteranceBatches
from murmur.speech.language_model.text_scores import perplexity_of
from murmur.speech.language_model.word_lstm import LstmLanguageModel, Sentences, WordLstm, padded
from murmur.tasks.language_model.data import TextData, Texts, load
from murmur.tasks.language_model.portable import PortableLanguageModel


@dataclass(frozen=True)
class LanguageModelTask:
    """Prediction of each word of a sentence from the words before it.

    Attributes:
        corpus: folder of a set, whose lm_text (a folder or file; else the transcripts of data/train) is the training
            text, data/dev the held-out text and data/test the text of the final figure, where these are not named.
        text: training text: a file of one sentence a line, a folder of .txt or .txt.gz files, or a data directory.
        dev_text: held-out text, of the same kinds.
        test_text: text of the final figure; without one it is the held-out text.
        writing: rule for the words of text files: as-is, or english (capitals without punctuation) and unspaced, by
            which `murmur prepare` writes transcripts.
        held_out_every: without a held-out text, every n-th sentence of the training text is set apart for it.
        most_words: most words of the vocabulary, the frequent ones; None for no limit.
        min_count: least number of occurrences of a word of the vocabulary. Rarer words train the unknown word <unk>.
        network: size of the network.
        minibatch_size: number of sentences.
        seed: seed of the order of the sentences.
    """

    corpus: Path | None = None
    text: Path | None = None
    dev_text: Path | None = None
    test_text: Path | None = None
    writing: Writing = field(default="as-is", repr=False, metadata=ADDED)
    held_out_every: int = 50
    most_words: int | None = 20_000
    min_count: int = 2
    network: WordLstm = field(default_factory=WordLstm)
    minibatch_size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.minibatch_size, self.min_count, 1 if self.most_words is None else self.most_words) < 1:
            raise ValueError(
                f"minibatch_size {self.minibatch_size}, min_count {self.min_count} and most_words {self.most_words}:"
                " all must be at least 1"
            )
        if self.held_out_every < 2:
            raise ValueError(f"held_out_every = {self.held_out_every} leaves no sentence to train on: give at least 2")

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: every process reads the text itself."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def check(self) -> None:
        """Check that all texts are there.

        Raises:
            SettingError: one is missing; the message names it.
        """
        self._texts.check()

    def prepare(self) -> TextData:
        """Read the texts, so that wrong ones are reported once."""
        return self.data

    @cached_property
    def data(self) -> TextData:
        """Vocabulary and texts, read on first use.

        Raises:
            SettingError, ValueError: a text cannot be used; the message gives the reason.
        """
        return load(self._texts, self.held_out_every, self.most_words, self.min_count, self.writing)

    @property
    def _texts(self) -> Texts:
        return Texts.found(self.corpus, self.text, self.dev_text, self.test_text)

    @property
    def per_epoch(self) -> int:
        """Minibatches in one pass over the sentences."""
        return self._order.per_epoch

    @property
    def samples_per_epoch(self) -> float:
        """Words and ends of sentences in one pass."""
        return float(sum(self.data.train.tokens))

    def model(self) -> nn.Module:
        """A fresh network, inputs_NL to logits_NLV."""
        return self.network.build(len(self.data.words))

    def outputs_digest(self) -> str:
        """Digest of the vocabulary."""
        return hashlib.sha256("\n".join(self.data.words.words).encode()).hexdigest()

    @cached_property
    def data_digest(self) -> str:
        """Digest of the vocabulary and of the numbered words of the training and the held-out text."""
        content = hashlib.sha256(self.outputs_digest().encode())
        for text in (self.data.train, self.data.dev):
            for array in (text.numbers, text.ends):
                content.update(np.ascontiguousarray(array, "<i8").data)
                content.update(len(array).to_bytes(8, "little"))
        return content.hexdigest()

    def minibatch(self, n: int) -> Sentences:
        """Minibatch n, sentences of similar length: a pure function of the task's fields and n."""
        return self._batch(self._order[n])

    @property
    def most_pieces(self) -> int:
        """Sentences of a minibatch."""
        return self.minibatch_size

    def piece(self, n: int, number: int, of: int) -> Sentences | None:
        """Some sentences of minibatch n."""
        every = self._order[n]
        own = every[len(every) * number // of : len(every) * (number + 1) // of]
        return self._batch(own) if own else None

    def loss(self, model: nn.Module, minibatch: Sentences) -> Loss:
        """-ln P of the sentences, summed; samples are words and ends of sentences."""
        assert isinstance(model, LstmLanguageModel)
        return Loss(-model.log_probs(minibatch).sum(), float(minibatch.tokens))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On dev: "loss" in nats per token, "logprob", its negative, and "perplexity", e to the loss."""
        assert isinstance(model, LstmLanguageModel)
        found = perplexity_of(model, self.data.dev)
        loss = -found.log10_prob * math.log(10) / found.scored_tokens
        return {"loss": loss, "logprob": -loss, "perplexity": found.perplexity}

    def test(self, model: nn.Module) -> Score:
        """Perplexity of the test text, also without unknown words, and the share of unknown words in percent."""
        assert isinstance(model, LstmLanguageModel)
        found = perplexity_of(model, self.data.test)
        figures = {
            "perplexity": found.perplexity,
            "perplexity without OOV words": found.perplexity_known,
            "OOV": found.unknown_percent,
        }
        return Score(figures, (str(found),))

    def save_description(self, folder: Path) -> None:
        """Write vocabulary and size of the network into a folder, see `PortableLanguageModel`."""
        PortableLanguageModel(self.data.words, self.network).save(folder)

    def _batch(self, chosen: Sequence[int]) -> Sentences:
        return padded([self.data.train[sentence] for sentence in chosen])

    @cached_property
    def _order(self) -> UtteranceBatches:
        return UtteranceBatches(self.data.train.tokens, self.minibatch_size, self.seed)
