"""CTC training of an LSTM acoustic model, as a task for the engine: the embedded digits, or any folder of data sets.

    murmur train ctc --learners 2                                    (digits spoken by espeak-ng; a minute on two cores)
    murmur train ctc --learners 2 --set task.corpus=path/to/an4_mfcc --set task.units=char --set budget.epochs=36 ...

A folder holds `data/train`, `data/test` and perhaps `data/dev` in Kaldi's layout, with audio or with features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optimizer import Adam
from murmur.engine.schedule import Cosine
from murmur.engine.task import Loss, Score
from murmur.recipes.ctc_data import Data, Split, load, read
from murmur.recipes.recognised import recognised
from murmur.speech import ctc
from murmur.speech.augment import SpecAugment
from murmur.speech.batching import UtteranceBatches, pad
from murmur.speech.cmvn import Scope
from murmur.speech.corpus import Corpus
from murmur.speech.digits import Digits, make_digits
from murmur.speech.models import Blstm, Network
from murmur.speech.wer import score
from murmur.strategies import KAVG

EVALUATION_SIZE = 32
AUGMENT = SpecAugment(warp=0.1, tempo=0.1, time_masks=1, time_frames=12, bin_masks=1, bins=6)


@dataclass(frozen=True)
class Batch:
    """Utterances of similar length: feats (N, T, F) padded with zeros, lengths (N,) in frames, label columns, names."""

    feats: Tensor
    lengths: Tensor
    targets: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class CtcTask:
    """Audio to text by one LSTM and the CTC criterion; held-out figures by greedy decoding.

    Attributes:
        corpus: folder with data/{train,dev,test}; None synthesises the digits corpus with espeak-ng.
        units: what the network writes, "word" or "char".
        hidden: LSTM cells per layer and direction.
        layers: bidirectional LSTM layers.
        dropout: behind every layer, while training.
        stack: frames joined into one network input (3 frames of 10 ms give 30 ms).
        minibatch_size: utterances.
        augment: on training minibatches; `SpecAugment(time_masks=0, bin_masks=0)` leaves them alone. The warp of the
            bin axis is left out for features that the corpus brings along, whose columns need not be frequencies.
        cmvn: whose statistics normalise the features.
        seed: of the order of the data and of the augmentation.
        digits: size of the synthetic corpus.
        cache: folder for synthesised audio and computed features.
    """

    corpus: Path | None = None
    units: ctc.Kind = "word"
    hidden: int = 96
    layers: int = 2
    dropout: float = 0.1
    stack: int = 3
    minibatch_size: int = 8
    augment: SpecAugment = AUGMENT
    cmvn: Scope = "utterance"
    seed: int = 0
    digits: Digits = field(default_factory=Digits)
    cache: Path = Path("runs/cache")

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: data already loaded stays out of pickles, every process reads its own."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def prepare(self) -> Data:
        """Synthesise and analyse what is not cached yet; worth calling once before several learners start."""
        return self.data

    @cached_property
    def data(self) -> Data:
        """The three splits, loaded on first use.

        Raises:
            CorpusError: the folder cannot be used; the message says why.
        """
        root = make_digits(self.cache, self.digits) if self.corpus is None else Path(self.corpus)
        return load(root, self.units, self.stack, self.cmvn, self.cache)

    @property
    def per_epoch(self) -> int:
        """Minibatches in one pass over the training utterances."""
        return self._order.per_epoch

    @property
    def samples_per_epoch(self) -> float:
        """Utterances in one pass; a minibatch weighs what it holds of them."""
        return float(len(self.data.train.names))

    def model(self) -> nn.Module:
        """A fresh BLSTM, feats_NTF and lengths_N to logits_NUC."""
        network: Network = Blstm(self.hidden, self.layers, self.dropout, self.stack)
        inputs = next(iter(self.data.train.feats.values())).shape[1]
        return network.build(inputs, self.data.units.columns)

    def minibatch(self, n: int) -> Batch:
        """Minibatch n with its SpecAugment masks: a pure function of the task's fields and n."""
        rng = np.random.default_rng([self.seed, n])
        names = [self.data.train.names[i] for i in self._order[n]]
        feats = [self._augmented(name, rng) for name in names]
        return _batch(feats, self.data.train, names)

    def loss(self, model: nn.Module, minibatch: Batch) -> Loss:
        """CTC loss, -ln P(transcript), summed over the utterances of the minibatch."""
        logits_NUC, frames_N = self._logits(model, minibatch)
        return Loss(ctc.loss(logits_NUC, frames_N, minibatch.targets), len(minibatch.names))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On dev: "loss" per utterance (of those whose text the units can write), "wer" and "cer" in percent."""
        dev = self.data.dev
        hypotheses, loss = self._decode(model, dev)
        words, characters = score(dev.texts, hypotheses), score(dev.texts, hypotheses, unit="char")
        return {"loss": loss, "wer": words.percent, "cer": characters.percent}

    def test(self, model: nn.Module) -> Score:
        """On test, whose speakers are not in training: %WER and %CER with insertions, deletions, substitutions."""
        test = self.data.test
        hypotheses, _ = self._decode(model, test)
        words, characters = score(test.texts, hypotheses), score(test.texts, hypotheses, unit="char")
        figures = {"wer": words.percent, "cer": characters.percent}
        return Score(figures, (str(words), str(characters)), recognised(test.texts, hypotheses))

    def transcribe(self, model: nn.Module, split: Split) -> dict[str, str]:
        """Best-path transcripts {utterance: text} of a split of `data`."""
        return self._decode(model, split)[0]

    def read(self, corpus: Corpus) -> Split:
        """Other speech, ready for `transcribe`.

        Raises:
            CorpusError: its audio or features cannot be used.
        """
        return read(corpus, self.data, self.stack, self.cmvn, self.cache)

    def _augmented(self, name: str, rng: np.random.Generator) -> np.ndarray:
        train = self.data.train
        augment = self.augment if self.data.log_mel else replace(self.augment, warp=0.0)
        changed = augment(train.feats[name], rng)
        needed = ctc.frames_needed(train.targets[name]) * self.stack
        return changed if len(changed) >= needed else train.feats[name]  # a fast tempo must not undo alignability

    @cached_property
    def _order(self) -> UtteranceBatches:
        train = self.data.train
        frames = tuple(len(train.feats[name]) for name in train.names)
        return UtteranceBatches(frames, self.minibatch_size, self.seed)

    def _logits(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        device = next(model.parameters()).device
        logits_NUC = model(batch.feats.to(device), batch.lengths.to(device))
        return logits_NUC, (batch.lengths + self.stack - 1) // self.stack

    def _decode(self, model: nn.Module, split: Split) -> tuple[dict[str, str], float]:
        order = UtteranceBatches(tuple(len(split.feats[name]) for name in split.names), EVALUATION_SIZE).in_order()
        hypotheses, total, training = {}, 0.0, model.training
        model.eval()
        with torch.inference_mode():
            for group in order:
                names = [split.names[i] for i in group]
                batch = _batch([split.feats[name] for name in names], split, names)
                logits_NUC, frames_N = self._logits(model, batch)
                best = ctc.greedy(logits_NUC, frames_N)
                hypotheses.update({n: self.data.units.decode(b) for n, b in zip(batch.names, best, strict=True)})
                known = [i for i, name in enumerate(batch.names) if name in split.targets]
                total += float(ctc.loss(logits_NUC[known], frames_N[known], [batch.targets[i] for i in known]))
        model.train(training)
        return hypotheses, total / max(len(split.targets), 1)


def _batch(feats: Sequence[np.ndarray], split: Split, names: Sequence[str]) -> Batch:
    feats_NTF, lengths_N = pad(feats)
    return Batch(feats_NTF, lengths_N, tuple(split.targets.get(name, ()) for name in names), tuple(names))


def experiment() -> Experiment:
    """The digits with K-step averaging. Expected: a word error rate of 3 to 4 % on unseen voices."""
    return Experiment(
        CtcTask(),
        KAVG(K=4),
        Budget(epochs=14),
        Adam(lr=3e-3),
        Cosine(warm=0.1),
        evaluate_every_epochs=2.0,
        max_gradient_norm=5.0,
    )
