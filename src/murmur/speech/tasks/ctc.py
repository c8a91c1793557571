"""CTC training of an acoustic model as a task of the engine, on synthetic digits or any folder of data sets.

    murmur train ctc --learners 2                                    (digits spoken by espeak-ng; a minute on two cores)
    murmur train ctc --learners 2 --set task.corpus=FOLDER --set task.units=grapheme --set budget.epochs=36 ...
    murmur train ctc --set task.corpus=FOLDER --set task.units=phone --set task.guess=espeak
        --set task.decoding.grammar=lm/tg.arpa.gz ...

A folder holds `data/train`, `data/test` and perhaps `data/dev` in Kaldi's layout, with audio or with features. Units:
char, grapheme and word need no lexicon; phone needs one (`task.lexicon`) or guesses pronunciations. The loss is
-ln P(transcript | frames) / frames in nats, a sum over all pronunciations and alignments; "logprob" is its negative.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from murmur.core.errors import SettingError
from murmur.engine.task import Loss, Score, Unmade
from murmur.execution.executors import whole_host
from murmur.speech import ctc
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.corpus.digits import digits_folder
from murmur.speech.corpus.synth import check_installed
from murmur.speech.ctc import LabelGraph
from murmur.speech.features.analysis import LogMel
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.batching import UtteranceBatches, pad
from murmur.speech.features.cmvn import Scope
from murmur.speech.features.feature_store import is_prepared, prepare
from murmur.speech.lexicon.lexicon import Entry, read_lexicon
from murmur.speech.models import Blstm, Network
from murmur.speech.tasks.acoustic_model import AcousticModel, training_statistics
from murmur.speech.tasks.chunk_learning import Precision, products_in
from murmur.speech.tasks.corpora import check_digits, check_parts, splits
from murmur.speech.tasks.ctc_data import BINS, DELTAS, Data, SplitData, front_of, labeller, outputs
from murmur.speech.tasks.graph_sources import CTC_GRAMMARS, CTC_SEARCH, GREEDY, CtcSources, Search, first_options
from murmur.speech.tasks.prepared import digest_of, refuse_to_make
from murmur.speech.tasks.pronouncing import completed_lexicon
from murmur.speech.tasks.recogniser import PortableRecogniser
from murmur.speech.tasks.speech_task import SpeechTask
from murmur.speech.tasks.word_search import WordSearch, graphs_beside

PARTS = ("train", "dev", "test")
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
class CtcTask(SpeechTask):
    """Audio to text by one network and the CTC criterion.

    Attributes:
        units: output units of the network, see `murmur.speech.ctc.Units`.
        lexicon: pronunciations for phone units: a file in the corpus folder, or its path.
        network: type and size of the network; its `stack` divides the frame rate (3 frames of 10 ms give 30 ms).
        precision: number format of the network's matrix products in training; evaluation and decoding use float32.
        minibatch_size: number of utterances.
        augment: changes of training minibatches; `SpecAugment(time_masks=0, bin_masks=0)` makes none. The warp of the
            bin axis is skipped for features that the corpus brings, whose columns may not be frequencies.
        cmvn: scope of the mean and variance that normalise the features: "speaker", "utterance" or "none".
        decoding: greedy search, or search with a graph of the words.
    """

    units: ctc.Kind = "word"
    lexicon: Path = Path("lexicon.txt")
    network: Network = field(default_factory=lambda: Blstm(hidden=96, layers=2, dropout=0.1, stack=3))
    precision: Precision = "float32"
    minibatch_size: int = 8
    augment: SpecAugment = AUGMENT
    cmvn: Scope = "utterance"
    decoding: Search = CTC_SEARCH

    def __post_init__(self) -> None:
        if min(self.stack, self.minibatch_size) < 1:
            raise ValueError(f"network.stack {self.stack} and minibatch_size {self.minibatch_size} must be at least 1")
        first_options(self.decoding)

    def check(self) -> None:
        """Check for missing files, an unknown grammar and missing libraries, before any work starts."""
        if self.corpus is None:
            check_digits(self.cache, self.digits)
        else:
            check_parts(Path(self.corpus))
        found = self.corpus is None or self._lexicon_in(Path(self.corpus)).is_file()  # the digits have one
        if self.units == "phone" and self.guess == "none" and not found:
            raise SettingError(
                f"task.units=phone needs a lexicon, and {self.lexicon} is neither in {self.corpus} nor a path: name one"
                " (task.lexicon), or guess all words (task.guess=espeak)"
            )
        if self.units == "phone" and self.guess == "espeak":
            check_installed()
        self.check_grammar(self.decoding.grammar, "task.decoding.grammar")

    def unprepared(self) -> list[Unmade]:
        return self.unmade_features(PARTS, BINS, front_of)

    def check_grammar(self, name: str, option: str) -> None:
        folder = digits_folder(self.cache, self.digits) if self.corpus is None else Path(self.corpus)
        if name not in CTC_GRAMMARS and not any(path.is_file() for path in (folder / name, Path(name))):
            raise SettingError(
                f"{option}: there is no grammar {name!r}: choose greedy, loop, 'one word', or an ARPA file"
                f" (in {folder}, or a path)"
            )

    def _lexicon_in(self, root: Path) -> Path:
        inside = root / self.lexicon
        return inside if inside.is_file() or not self.lexicon.is_file() else self.lexicon

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

        Corpora that bring features (feats.scp) get two orders of deltas; audio gives 40 log-mel bins.
        """
        parts = self._parts
        front = front_of(parts["train"])
        units, lexicon = self._units(parts["train"])
        label = labeller(units, lexicon)
        lacking = [name for name, part in parts.items() if not is_prepared(part, front, self.cache)]
        if lacking and self.absent == "refuse":
            refuse_to_make(f"features of {', '.join(lacking)}", self.cache)
        train, dev, test = (
            SplitData.of(
                name,
                prepare(part, front, self.cache, whole_host(self.work), progress=True),
                label,
                self.stack,
                self.cmvn,
            )
            for name, part in parts.items()
        )
        parts["train"].without(train.problems)  # raises an error if too many are lost
        aligned = replace(train, names=tuple(name for name in train.names if name in train.targets))
        return Data(units, aligned, dev, test, isinstance(front, LogMel), lexicon)

    @cached_property
    def _parts(self) -> dict[str, Corpus]:
        return dict(zip(PARTS, splits(self.root), strict=True))

    def _units(self, train: Corpus) -> tuple[ctc.Units, tuple[Entry, ...]]:
        """Output units, and the pronunciations behind phones."""
        texts = train.texts.values()
        if self.units != "phone":
            return ctc.Units.of(texts, self.units), ()
        # Words of dev and test that training lacks stay unknown: a vocabulary made from them would flatter the results.
        entries = tuple(
            read_lexicon(completed_lexicon(self._lexicon_in(self.root), texts, self.guess, self.cache, self.absent))
        )
        return ctc.Units.of((" ".join(phones) for _, phones in entries), "phone"), entries

    @property
    def stack(self) -> int:
        """Feature frames of an output frame."""
        return self.network.stack

    @property
    def per_epoch(self) -> int:
        return self._order.per_epoch

    @property
    def samples_per_epoch(self) -> float:
        """Feature frames in one pass; a minibatch's weight is its number of these frames."""
        return float(self.data.train.frames)

    def model(self) -> nn.Module:
        """A fresh network, feats_NTF and lengths_N to logits_NUC."""
        return self._acoustic.build()

    def outputs_digest(self) -> str:
        return self._words.sources.outputs_key

    @cached_property
    def data_digest(self) -> str:
        parts = (self.data.train, self.data.dev)
        return digest_of(*([(u, p.speakers[u], p.texts[u], len(p.feats[u])) for u in p.names] for p in parts))

    @property
    def most_pieces(self) -> int:
        return self.minibatch_size

    def piece(self, n: int, number: int, of: int) -> Batch | None:
        chosen, rng = self._order.piece(n, number, of)
        if not chosen:
            return None
        train = self.data.train
        names = [train.names[i] for i in chosen]
        feats_NTF, lengths_N = pad([self._augmented(name, rng) for name in names])
        frames = sum(len(train.feats[name]) for name in names)
        return Batch(feats_NTF, lengths_N, tuple(train.targets[name] for name in names), tuple(names), frames)

    def loss(self, model: nn.Module, minibatch: Batch) -> Loss:
        """-ln P(transcript | frames), summed over utterances; samples are counted in frames."""
        device = next(model.parameters()).device
        with products_in(self.precision, device.type):
            logits_NUC = model(minibatch.feats.to(device), minibatch.lengths.to(device))
        frames_N = (minibatch.lengths + self.stack - 1) // self.stack
        return Loss(ctc.loss(logits_NUC.float(), frames_N, minibatch.targets), minibatch.frames)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On dev: "loss" in nats per frame (of utterances whose text the units can write), and "logprob", its negative.

        Also the error rates of greedy decoding in percent: "wer" and "cer"; "per" if the units are phones.
        """
        found = outputs(model, self.data.dev, self.stack)
        rates = self.data.greedy_rates(self.data.dev, found)
        return {"loss": found.loss, "logprob": -found.loss, **{name: rate.percent for name, rate in rates.items()}}

    def test_in(self, model: nn.Module, kept: Path | None) -> Score:
        """Error rates on test: greedy, and with the graph tuned on dev if `decoding` names a grammar."""
        test = outputs(model, self.data.test, self.stack)
        if self.decoding.grammar == GREEDY:
            return self.data.greedy_score(test)
        dev = outputs(model, self.data.dev, self.stack)
        options = self._words.tune(self.decoding, dev.scores, self.data.dev.texts, kept)
        return self.data.graph_score(test, self._words.decode(test.scores, options, kept).texts, options)

    def recogniser(self) -> PortableRecogniser:
        return PortableRecogniser(self._acoustic, self._words.sources, self.cache, self._words.built)

    def utterances(self, part: str) -> Corpus:
        return self._parts[part]

    @property
    def _acoustic(self) -> AcousticModel:
        train = self.utterances("train")
        front, order, training = front_of(train), DELTAS, None
        if isinstance(front, LogMel):
            order, training = 0, partial(training_statistics, train, front, self.cache, self.absent)
        inputs = next(iter(self.data.train.feats.values())).shape[1]
        columns = self.data.units.columns
        return AcousticModel(front, order, self.cmvn, self.network, inputs, columns, self.stack, training=training)

    @cached_property
    def _words(self) -> WordSearch:
        train, grammar = self.data.train, self.decoding.grammar
        words = frozenset(word for name in train.names for word in train.texts[name].split())
        files = [path for path in (self.root / grammar, Path(grammar)) if path.is_file()]
        models = {grammar: files[0]} if files else {}
        sources = CtcSources(self.data.units, self.decoding, self.data.lexicon, words, models)
        return WordSearch(sources, grammar, self.cache, self.work, 100.0 / self.stack)

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
