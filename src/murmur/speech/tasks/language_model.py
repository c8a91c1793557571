"""Training of an LSTM language model as a task of the engine, on any text of one sentence a line.

    murmur train lm --set task.text=FILE                              (a file, .txt or .txt.gz, or a folder of them)
    murmur train lm --set task.corpus=FOLDER                          (its lm_text, else its transcripts)
    murmur train librispeech_lm --set task.corpus=FOLDER --set task.text=FILE --learners 2

The loss is -ln P(sentence) in nats, summed over words and ends of sentences; these tokens are the samples. A run
describes its model in plain files: `language_model.json` holds format, size of the network, number of words and the
SHA-256 of `words.txt`, which holds one word a line in the order of their numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.core.whole_files import atomic_folder
from murmur.engine.task import Loss, Score
from murmur.run.folder.contents import DESCRIPTION
from murmur.speech.corpus.file_content import making_sense_of, read_object
from murmur.speech.corpus.published.transcripts import Writing
from murmur.speech.features.batching import UtteranceBatches
from murmur.speech.features.shards import sha256_of
from murmur.speech.language_model.word_lstm import (
    LstmLanguageModel,
    Sentences,
    WordLstm,
    WordNumbers,
    padded,
    perplexity_of,
)
from murmur.speech.tasks.texts import TextData, Texts, load

FORMAT = "murmur language model 1"
VALUES, WORDS = "language_model.json", "words.txt"
AGAIN = "copy the run again, with all its files"


@dataclass(frozen=True)
class PortableLanguageModel:
    """Vocabulary and size of a language model; its training text is not needed."""

    words: WordNumbers
    network: WordLstm

    def build(self) -> LstmLanguageModel:
        return self.network.build(len(self.words))

    @property
    def weights(self) -> int:
        """Number of weights, found without memory for them."""
        with torch.device("meta"):
            return sum(weight.numel() for weight in self.build().parameters())

    def save(self, folder: Path) -> None:
        with atomic_folder(folder) as new:
            (new / WORDS).write_text("".join(f"{word}\n" for word in self.words.words), encoding="utf-8")
            values = {
                "format": FORMAT,
                "network": asdict(self.network),
                "words": len(self.words),
                "sha256": {WORDS: sha256_of(new / WORDS)},
            }
            (new / VALUES).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def open(folder: Path) -> PortableLanguageModel:
        """Read both files, after a check of the words' checksum."""
        for name in (VALUES, WORDS):
            if not (folder / name).is_file():
                raise SettingError(f"{folder / name} is missing: {AGAIN}")
        values = read_object(folder / VALUES, AGAIN)
        with making_sense_of(folder / VALUES, AGAIN):
            if values["format"] != FORMAT:
                raise ValueError(f"format {values['format']!r}, not {FORMAT!r}")
            digest, network = str(values["sha256"][WORDS]), WordLstm(**values["network"])
        if sha256_of(folder / WORDS) != digest:
            raise SettingError(f"{folder / WORDS} is not what was written there: {AGAIN}")
        with making_sense_of(folder / WORDS, AGAIN):
            words = WordNumbers(tuple((folder / WORDS).read_text(encoding="utf-8").split("\n")[:-1]))
        found = PortableLanguageModel(words, network)
        with making_sense_of(folder / VALUES, AGAIN):
            if len(words) != values["words"] or found.weights < 1:
                raise ValueError(f"{counted(len(words), 'word')}, not {values['words']}")
        return found


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
    writing: Writing = "as-is"
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
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def check(self) -> None:
        self._texts.check()

    def prepare(self) -> TextData:
        """Read the texts, so that wrong ones are reported once."""
        return self.data

    @cached_property
    def data(self) -> TextData:
        """Vocabulary and texts, read on first use."""
        return load(self._texts, self.held_out_every, self.most_words, self.min_count, self.writing)

    @property
    def _texts(self) -> Texts:
        return Texts.found(self.corpus, self.text, self.dev_text, self.test_text)

    @property
    def per_epoch(self) -> int:
        return self._order.per_epoch

    @property
    def samples_per_epoch(self) -> float:
        return float(sum(self.data.train.tokens))

    def model(self) -> nn.Module:
        """A fresh network, inputs_NL to logits_NLV."""
        return self.network.build(len(self.data.words))

    def outputs_digest(self) -> str:
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
        return self._batch(self._order[n])

    @property
    def most_pieces(self) -> int:
        return self.minibatch_size

    def piece(self, n: int, number: int, of: int) -> Sentences | None:
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

    def save_description(self, run: Path) -> None:
        """Write vocabulary and size of the network into the folder of a run, see `PortableLanguageModel`."""
        PortableLanguageModel(self.data.words, self.network).save(run / DESCRIPTION)

    def _batch(self, chosen: Sequence[int]) -> Sentences:
        return padded([self.data.train[sentence] for sentence in chosen])

    @cached_property
    def _order(self) -> UtteranceBatches:
        return UtteranceBatches(self.data.train.tokens, self.minibatch_size, self.seed)
