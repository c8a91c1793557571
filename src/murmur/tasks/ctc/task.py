"""CTC training of an LSTM acoustic model as a task of the engine, on synthetic digits or any folder of data sets.

    murmur train ctc --learners 2                                    (digits spoken by espeak-ng; a minute on two cores)
    murmur train ctc --learners 2 --set task.corpus=FOLDER --set task.units=grapheme --set budget.epochs=36 ...
    murmur train ctc --set task.corpus=FOLDER --set task.units=phone --set task.guess=espeak
        --set task.decoding.grammar=lm/tg.arpa.gz ...

A folder holds `data/train`, `data/test` and perhaps `data/dev` in Kaldi's layout, with audio or with features. Units:
char, grapheme and word need no lexicon; phone needs one (`task.lexicon`) or guesses pronunciations. The loss is
-ln P(transcript | frames) / frames in nats, a sum over all pronunciations and alignments; "logprob" is its negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from murmur.core.errors import SettingError
from murmur.engine.task import Loss, Score, Unmade
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.corpus.digits import Digits, digits_folder, make_digits
from murmur.speech.corpus.synth import check_installed
from murmur.speech.ctc import criterion as ctc
from murmur.speech.ctc import labels as ctc_labels
from murmur.speech.ctc.labels import LabelGraph
from murmur.speech.features.analysis import LogMel
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.batching import UtteranceBatches, pad
from murmur.speech.features.cmvn import Scope
from murmur.speech.models import Blstm, Network
from murmur.tasks.acoustic_model import AcousticModel, training_statistics
from murmur.tasks.corpora import check_digits, check_parts, splits
from murmur.tasks.ctc.data import BINS, PARTS, Data, Reading, front_of, load
from murmur.tasks.ctc.decode import GREEDY, CtcDecoding
from murmur.tasks.ctc.graphs import CtcSources, units_digest
from murmur.tasks.ctc.output import graph_score, greedy_rates, greedy_score, outputs
from murmur.tasks.data_digest import digest_of
from murmur.tasks.graphs_beside import graphs_beside
from murmur.tasks.hybrid.config import LOOP, ONE_WORD
from murmur.tasks.prepared import Absent, refuse_to_make
from murmur.tasks.pronouncing import Guess
from murmur.tasks.recogniser import PortableRecogniser
from murmur.tasks.unprepared import digits_to_make, features_of, features_to_make
from murmur.tasks.word_search import WordSearch

AUGMENT = SpecAugment(warp=0.1, tempo=0.1, time_masks=1, time_frames=12, bin_masks=1, bins=6)


@dataclass(frozen=True)
class Batch:
    """Utterances of similar length.

    feats (N, T, F) padded with zeros, lengths (N,) in frames, label graphs, names; `frames` counts those of the corpus
    before any change of tempo: the weight of the minibatch.
    """

    feats: Tensor
    lengths: Tensor
    targets: tuple[LabelGraph, ...]
    names: tuple[str, ...]
    frames: int


@dataclass(frozen=True)
class CtcTask:
    """Audio to text by one LSTM and the CTC criterion.

    Attributes:
        corpus: folder with data/{train,dev,test}; None synthesises the digits corpus with espeak-ng.
        units: output units of the network, see `murmur.speech.ctc.criterion.Units`.
        lexicon: pronunciations for phone units: a file in the corpus folder, or its path.
        guess: source of pronunciations for words of train that the lexicon lacks: espeak (espeak-ng, in CMUdict's
            phones), graphemes, or none, which leaves such utterances out.
        hidden: LSTM cells per layer and direction.
        layers: bidirectional LSTM layers.
        dropout: share of every layer's outputs that is set to zero during training.
        stack: frames joined into one network input (3 frames of 10 ms give 30 ms).
        minibatch_size: number of utterances.
        augment: changes of training minibatches; `SpecAugment(time_masks=0, bin_masks=0)` makes none. The warp of the
            bin axis is skipped for features that the corpus brings, whose columns may not be frequencies.
        cmvn: scope of the mean and variance that normalise the features: "speaker", "utterance" or "none".
        decoding: greedy search, or search with a graph of the words.
        seed: seed of the order of the data and of the augmentation.
        digits: size of the synthetic corpus.
        jobs: decoding processes.
        cache: folder for synthesised audio, computed features, completed lexicons and graphs.
        absent: "make" to make training data that is missing from the cache, "refuse" to end with an error.
    """

    corpus: Path | None = None
    units: ctc.Kind = "word"
    lexicon: Path = Path("lexicon.txt")
    guess: Guess = "none"
    hidden: int = 96
    layers: int = 2
    dropout: float = 0.1
    stack: int = 3
    minibatch_size: int = 8
    augment: SpecAugment = AUGMENT
    cmvn: Scope = "utterance"
    decoding: CtcDecoding = field(default_factory=CtcDecoding)
    seed: int = 0
    digits: Digits = field(default_factory=Digits)
    jobs: int = 1
    cache: Path = Path("runs/cache")
    absent: Absent = field(default="make", repr=False)

    def __post_init__(self) -> None:
        if min(self.stack, self.minibatch_size) < 1:
            raise ValueError(f"stack {self.stack} and minibatch_size {self.minibatch_size} must be at least 1")

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: loaded data stays out of pickles, and every process reads its own."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def check(self) -> None:
        """Check for missing files, an unknown grammar and missing libraries, before any work starts.

        Raises:
            SettingError, CorpusError, SynthesisError: something is missing; the message names it.
        """
        if self.corpus is None:
            check_digits(self.cache, self.digits)
        else:
            check_parts(Path(self.corpus))
        if self.units == "phone" and self.guess == "none" and not self._lexicon_there():
            raise SettingError(
                f"task.units=phone needs a lexicon, and {self.lexicon} is neither in {self.corpus} nor a path: name one"
                " (task.lexicon), or guess all words (task.guess=espeak)"
            )
        if self.units == "phone" and self.guess == "espeak":
            check_installed()
        self.check_grammar(self.decoding.grammar, "task.decoding.grammar")

    def unprepared(self) -> list[Unmade]:
        """Digits and features that are not in the cache."""
        if self.corpus is None and not digits_folder(self.cache, self.digits).is_dir():
            spoken, hours = digits_to_make(self.cache, self.digits)
            return [spoken, *features_of(hours, BINS, self.cache, "log-mel features")]
        parts = dict(zip(("train", "dev", "test"), splits(self.root), strict=True))
        return features_to_make(parts, front_of(parts["train"]), self.cache, "features")

    def check_grammar(self, name: str, option: str) -> None:
        """Check that there is a grammar of this name; `option` is the setting or option that gives the name.

        Raises:
            SettingError: there is none.
        """
        folder = digits_folder(self.cache, self.digits) if self.corpus is None else Path(self.corpus)
        if name not in (GREEDY, LOOP, ONE_WORD) and not any(path.is_file() for path in (folder / name, Path(name))):
            raise SettingError(
                f"{option}: there is no grammar {name!r}: choose greedy, loop, 'one word', or an ARPA file"
                f" (in {folder}, or a path)"
            )

    def _lexicon_there(self) -> bool:
        inside = self.corpus is None or (Path(self.corpus) / self.lexicon).is_file()  # the digits have one
        return inside or self.lexicon.is_file()

    def prepare(self) -> Data:
        """Synthesise and analyse what is not cached yet; call it once before several learners start."""
        data = self.data
        if self.decoding.grammar != GREEDY:
            with graphs_beside([self._words]):
                pass
        return data

    @cached_property
    def data(self) -> Data:
        """The three splits, loaded on first use.

        Raises:
            CorpusError: the folder cannot be used; the message gives the reason.
        """
        return load(self.root, self._reading)

    @cached_property
    def root(self) -> Path:
        """The corpus folder; the digits are synthesised on first use."""
        if self.corpus is not None:
            return Path(self.corpus)
        if self.absent == "refuse" and not digits_folder(self.cache, self.digits).is_dir():
            refuse_to_make("the synthetic corpus", self.cache)
        return make_digits(self.cache, self.digits)

    @property
    def _reading(self) -> Reading:
        lexicon = self.root / self.lexicon
        lexicon = lexicon if lexicon.is_file() or not self.lexicon.is_file() else self.lexicon
        return Reading(self.units, self.stack, self.cmvn, lexicon, self.guess, self.cache, self.absent)

    @property
    def per_epoch(self) -> int:
        """Minibatches in one pass over the training utterances."""
        return self._order.per_epoch

    @property
    def samples_per_epoch(self) -> float:
        """Feature frames in one pass; a minibatch's weight is its number of these frames."""
        return float(self.data.train.frames)

    def model(self) -> nn.Module:
        """A fresh BLSTM, feats_NTF and lengths_N to logits_NUC."""
        inputs = next(iter(self.data.train.feats.values())).shape[1]
        return self._network.build(inputs, self.data.units.columns)

    def outputs_digest(self) -> str:
        """Digest of the units."""
        return units_digest(self.data.units)

    @cached_property
    def data_digest(self) -> str:
        """Digest of utterances, texts and numbers of frames."""
        parts = (self.data.train, self.data.dev)
        return digest_of(*([(u, p.speakers[u], p.texts[u], len(p.feats[u])) for u in p.names] for p in parts))

    def minibatch(self, n: int) -> Batch:
        """Minibatch n with its SpecAugment masks: a pure function of the task's fields and n."""
        return self._batch(self._order[n], (self.seed, n))

    @property
    def most_pieces(self) -> int:
        """Utterances of a minibatch."""
        return self.minibatch_size

    def piece(self, n: int, number: int, of: int) -> Batch | None:
        """Some utterances of minibatch n, with masks of their own."""
        every = self._order[n]
        own = every[len(every) * number // of : len(every) * (number + 1) // of]
        return self._batch(own, (self.seed, n) if of == 1 else (self.seed, n, number, of)) if len(own) else None

    def _batch(self, chosen: Sequence[int], name: tuple[int, ...]) -> Batch:
        rng = np.random.default_rng(name)
        names = [self.data.train.names[i] for i in chosen]
        feats = [self._augmented(name, rng) for name in names]
        feats_NTF, lengths_N = pad(feats)
        frames = sum(len(self.data.train.feats[name]) for name in names)
        return Batch(feats_NTF, lengths_N, tuple(self.data.train.targets[name] for name in names), tuple(names), frames)

    def loss(self, model: nn.Module, minibatch: Batch) -> Loss:
        """-ln P(transcript | frames), summed over utterances; samples are counted in frames."""
        logits_NUC, frames_N = self._logits(model, minibatch)
        return Loss(ctc_labels.loss(logits_NUC, frames_N, minibatch.targets), minibatch.frames)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On dev: "loss" in nats per frame (of utterances whose text the units can write), and "logprob", its negative.

        Also the error rates of greedy decoding in percent: "wer" and "cer"; "per" if the units are phones.
        """
        found = outputs(model, self.data.dev, self.stack)
        rates = greedy_rates(self.data, self.data.dev, found)
        return {"loss": found.loss, "logprob": -found.loss, **{name: rate.percent for name, rate in rates.items()}}

    def test(self, model: nn.Module) -> Score:
        """Error rates on test: greedy, and with the graph tuned on dev if `decoding` names a grammar."""
        return self.test_in(model, None)

    def test_in(self, model: nn.Module, kept: Path | None) -> Score:
        """`test`, with the decoding results saved in a folder and not decoded again."""
        test = outputs(model, self.data.test, self.stack)
        if self.decoding.grammar == GREEDY:
            return greedy_score(self.data, test)
        dev = outputs(model, self.data.dev, self.stack)
        options = self._words.tune(self.decoding.search, dev.scores, self.data.dev.texts, kept)
        return graph_score(self.data, test, self._words.decode(test.scores, options, kept).texts, options)

    def recogniser(self) -> PortableRecogniser:
        """Everything besides the weights that recognition with the network needs."""
        return PortableRecogniser(self._acoustic, self._words.sources, self.cache, self._words.built)

    def utterances(self, part: str) -> Corpus:
        """Utterances of "train", "dev" or "test"."""
        return dict(zip(PARTS, splits(self.root), strict=True))[part]

    @property
    def _acoustic(self) -> AcousticModel:
        train = self.utterances("train")
        front, training = front_of(train), None
        if isinstance(front, LogMel):
            training = partial(training_statistics, train, front, self.cache, self.absent)
        inputs = next(iter(self.data.train.feats.values())).shape[1]
        return AcousticModel(
            front,
            0 if isinstance(front, LogMel) else 2,
            self.cmvn,
            self._network,
            inputs,
            self.data.units.columns,
            self.stack,
            training=training,
        )

    @cached_property
    def _words(self) -> WordSearch:
        """Graph decoding with the grammar of `decoding`."""
        train, grammar = self.data.train, self.decoding.grammar
        words = frozenset(word for name in train.names for word in train.texts[name].split())
        files = [path for path in (self.root / grammar, Path(grammar)) if path.is_file()]
        models = {grammar: files[0]} if files else {}
        sources = CtcSources(self.data.units, self.decoding.search, self.data.lexicon, words, models)
        return WordSearch(sources, grammar, self.cache, self.jobs, 100.0 / self.stack)

    @property
    def _network(self) -> Network:
        return Blstm(self.hidden, self.layers, self.dropout, self.stack)

    def _augmented(self, name: str, rng: np.random.Generator) -> np.ndarray:
        train = self.data.train
        augment = self.augment if self.data.log_mel else replace(self.augment, warp=0.0)
        changed = augment(train.feats[name], rng)
        needed = train.targets[name].frames_needed * self.stack
        return changed if len(changed) >= needed else train.feats[name]  # a fast tempo must not prevent alignment

    @cached_property
    def _order(self) -> UtteranceBatches:
        train = self.data.train
        frames = tuple(len(train.feats[name]) for name in train.names)
        return UtteranceBatches(frames, self.minibatch_size, self.seed)

    def _logits(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        device = next(model.parameters()).device
        logits_NUC = model(batch.feats.to(device), batch.lengths.to(device))
        return logits_NUC, (batch.lengths + self.stack - 1) // self.stack
