"""Hybrid HMM and network, from audio to a word error rate: Gaussian systems align, a network learns their states.

    murmur train digits_hybrid                               (digits spoken by espeak-ng)
    murmur train librispeech --set task.corpus=FOLDER        (and yesno, fsdd, an4: see the recipes of these names)

Any folder with data/{train,test} and lexicon.txt works: `murmur train hybrid --set task.corpus=FOLDER`. Every stage is
stored in `task.cache`, and a killed run continues from there. Bourlard and Morgan, "Connectionist speech
recognition" (1994); Hinton et al., "Deep neural networks for acoustic modeling in speech recognition" (2012).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
from torch import nn

from murmur.core.errors import SettingError
from murmur.core.flat import Layout
from murmur.engine.checkpoints.checkpoint import read_pair
from murmur.engine.task import Score, Unmade
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.corpus.digits import Digits, digits_folder
from murmur.speech.corpus.synth import check_installed
from murmur.speech.decoding.graph_store import outputs_key
from murmur.speech.features.analysis import LogMel
from murmur.speech.features.augment import ChangeOfColumns, SpecAugment
from murmur.speech.features.chunks import Change, ChunkBatch, ChunkTable
from murmur.speech.hmm import hybrid
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.speaker_transforms import Transforms
from murmur.speech.models import Network, Tdnn
from murmur.tasks import corpora
from murmur.tasks.acoustic_model import AcousticModel, training_statistics
from murmur.tasks.chunk_learning import ChunkLearning
from murmur.tasks.data_digest import digest_of, rows_of
from murmur.tasks.graphs_beside import graphs_beside
from murmur.tasks.hybrid.config import Chunks, Decoding, FrontEnd, HmmStages, Search, first_options
from murmur.tasks.hybrid.data import HybridData, Targets, make_targets, realigned, stored_targets
from murmur.tasks.hybrid.decode import DecodeHalf, DecodingResult, Scorer, System
from murmur.tasks.hybrid.graphs import HmmSources, check_named
from murmur.tasks.hybrid.hmm import HmmHalf, input_dims
from murmur.tasks.hybrid.network_check import check_network
from murmur.tasks.hybrid.on_the_fly import check_noise, noise_source
from murmur.tasks.hybrid.speed_transforms import speed_transforms
from murmur.tasks.hybrid.stage import Stage
from murmur.tasks.hybrid.two_pass import TwoPass
from murmur.tasks.known_words import check_known, decoding_words
from murmur.tasks.precision import Precision
from murmur.tasks.prepared import Absent, refuse_to_make
from murmur.tasks.pronouncing import Guess, completed_lexicon
from murmur.tasks.recogniser import PortableRecogniser
from murmur.tasks.speaker_inputs import SpeakerInputs
from murmur.tasks.text_vocabulary import TextVocabulary
from murmur.tasks.unprepared import (
    digits_to_make,
    extractor_to_make,
    features_of,
    frames_to_make,
    speech_hours,
    systems_to_make,
)
from murmur.tasks.word_search import WordSearch

Loader = Literal[
    "an4",
    "an4_all",
    "folder",
    "fsdd_all",
    "fsdd_fold_1",
    "fsdd_fold_2",
    "fsdd_fold_3",
    "fsdd_fold_4",
    "fsdd_fold_5",
    "fsdd_official",
    "fsdd_unseen",
    "librispeech",
    "own",
    "yesno",
]


@dataclass(frozen=True)
class HybridTask(ChunkLearning):
    """Frame classification into the tied states of a Gaussian system, and decoding with HCLG.

    Attributes:
        corpus: folder of the set; None synthesises the digits corpus with espeak-ng.
        loader: kind of set in the folder, see `murmur.tasks.corpora`.
        guess: source of pronunciations for words of train that the lexicon lacks: espeak (espeak-ng, in CMUdict's
            phones), graphemes, or none, which leaves such utterances out.
        digits: size of the synthetic corpus.
        front: features.
        hmm: Gaussian systems; the last one aligns.
        network: type and size of the network.
        chunks: options for cutting utterances.
        augment: changes of every training chunk, without tempo, which would move frames away from their targets.
        precision: number format of the network's matrix products in training; decoding uses float32.
        decoding: grammars and tuning.
        vocabulary: text whose words and language models replace those of the set in decoding.
        realigned_by: an earlier network of this task (its folder's `model`), whose alignments replace the Gaussian
            ones.
        seed: seed of the order of chunks and of the masks.
        jobs: number of processes for alignment and decoding; preparation uses one per core.
        cache: folder for everything that is made once.
        absent: "make" to make training data that is missing from the cache, "refuse" to end with an error.
    """

    corpus: Path | None = None
    loader: Loader = "folder"
    guess: Guess = "none"
    digits: Digits = field(default_factory=Digits)
    front: FrontEnd = field(default_factory=FrontEnd)
    hmm: HmmStages = field(default_factory=HmmStages)
    network: Network = field(default_factory=Tdnn)
    chunks: Chunks = field(default_factory=Chunks)
    augment: SpecAugment = field(default_factory=SpecAugment)
    precision: Precision = "float32"
    decoding: Decoding = field(default_factory=Decoding)
    vocabulary: TextVocabulary = field(default_factory=TextVocabulary)
    realigned_by: Path | None = None
    seed: int = 0
    jobs: int = 1
    cache: Path = Path("runs/cache")
    absent: Absent = field(default="make", repr=False)

    def __post_init__(self) -> None:
        if self.augment.tempo:
            raise ValueError(f"augment.tempo = {self.augment.tempo}: targets are per frame; use task.front.speeds")
        if self.network.stack != 1:
            raise ValueError(f"network.stack = {self.network.stack}: every frame has a target, so it must be 1")
        wanted = self.front.input
        if wanted.fmllr and self.hmm.sat is None:
            raise ValueError("task.front.input.fmllr needs transforms: set 'task.hmm.sat=SatConfig()'")
        if wanted.of_speakers and getattr(self.network, "front", None) is not None:
            raise ValueError(
                "task.network.front with adapted features or an i-vector in task.front.input: they are no frequencies,"
                " over which convolutions could move: set task.network.front=None, or leave them out"
            )
        if not wanted.spectrum and (self.augment.warp or self.augment.bin_masks):
            raise ValueError(
                f"augment.warp = {self.augment.warp} and augment.bin_masks = {self.augment.bin_masks} with an input "
                "without spectrum: columns of adapted features are not frequencies: set both to 0"
            )

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: loaded data stays out of pickles, and every process reads its own."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def check(self) -> None:
        """Check for missing files, unknown grammars and missing libraries, before any work starts.

        Raises:
            SettingError, CorpusError, SynthesisError: something is missing; the message names it.
        """
        if self.corpus is None:
            corpora.check_digits(self.cache, self.digits)
        else:
            corpora.NEEDS[self.loader].check(Path(self.corpus))
        if self.guess == "espeak":
            check_installed()
        self.vocabulary.check()
        self.vocabulary.check_use(self.decoding.network.grammar)
        for name in ("gmm", "network"):
            search: Search = getattr(self.decoding, name)
            self.check_grammar(search.grammar, f"task.decoding.{name}.grammar")
            first_options(search)
        if self.front.cmvn == "none" and self.front.normalised != "static":
            raise SettingError("task.front.normalised has no effect with task.front.cmvn=none: leave one of them out")
        check_noise(self.front)
        if self.realigned_by is not None and not self.realigned_by.with_suffix(".safetensors").is_file():
            raise SettingError(f"task.realigned_by: there is no model {self.realigned_by}.safetensors")

    def unprepared(self) -> list[Unmade]:
        """Digits, features, Gaussian systems and frames that are missing from the cache.

        Guesses the words without a pronunciation if `guess` is set: the names of the systems depend on them.
        """
        if self.corpus is None and not digits_folder(self.cache, self.digits).is_dir():
            spoken, all_hours = digits_to_make(self.cache, self.digits)
            hours = {part: all_hours[part] for part in ("train", "dev")}  # test is not used before the end
            found = [spoken, *features_of(hours, self.front.cepstra, self.cache, "cepstra")]
            if self.front.input.spectrum:
                found += features_of(hours, self.front.bins, self.cache, "log-mel features")
            missing, extractor = self.hmm.to_train, self.front.input.ivector
        else:
            parts = {"train": self.material.train, "dev": self.material.dev}
            hours = {name: speech_hours(part) for name, part in parts.items()}
            found = self.hmms.features_to_make(parts)
            missing, stage = self.hmms.untrained(), self.hmms.ivector_stage
            extractor = None if stage is None or not stage.untrained() else stage.config
        found += systems_to_make(self.hmm, missing, hours["train"], self.cache, self.jobs)
        if extractor is not None:
            found.append(extractor_to_make(extractor, hours["train"], self.cache))
        if missing or not any(self.cache.glob("frames-*")):
            values = {"float32": 4, "float16": 2, "uint8": 1}[self.front.storage]
            train = hours["train"] * len(self.front.stored.speeds)
            spectrum = (1 + (self.front.input.deltas or 0)) * self.front.bins
            dims = input_dims(self.front, self.hmm, spectrum)
            found.append(frames_to_make(train, dims, values, self.cache))
        return found

    def check_grammar(self, name: str, option: str) -> None:
        """Check that the set has a grammar; `option` is the setting or option that names it.

        Raises:
            SettingError: there is none of this name.
        """
        own = () if self.corpus is None else corpora.NEEDS[self.loader].language_models
        check_named(name, sorted({*own, *self.vocabulary.names}), option)

    @cached_property
    def material(self) -> corpora.SpeechSet:
        """The utterances, lexicon and language models.

        Raises:
            CorpusError: the folder cannot be used; the message gives the reason.
        """
        if self.corpus is None:
            if self.absent == "refuse" and not digits_folder(self.cache, self.digits).is_dir():
                refuse_to_make("the synthetic corpus", self.cache)
            return corpora.digits(self.cache, self.digits)
        found = corpora.LOADERS[self.loader](Path(self.corpus))
        return replace(found, lexicon=self._completed(found.lexicon, found.train))

    def _completed(self, lexicon: Path, train: Corpus) -> Path:
        if self.guess == "none":
            return lexicon
        return completed_lexicon(lexicon, train.texts.values(), self.guess, self.cache, self.absent)

    @cached_property
    def hmms(self) -> HmmHalf:
        """The Gaussian half."""
        own = None if self.corpus is None else Path(self.corpus) / "lexicon.txt"
        lexicon = self.material.lexicon
        if own is not None and own.is_file():
            lexicon = self._completed(own, self.material.train)
        transforms = self._transforms if self.front.input.fmllr else None
        return HmmHalf(self.material, lexicon, self.front, self.hmm, self.cache, self.jobs, self.absent, transforms)

    def _transforms(self, part: Corpus, speed: float) -> Transforms:
        """Transforms of the speakers of train, dev or test; those of dev and test come from decoding.

        Raises:
            SettingError: they are not in the cache, and `absent` refuses to make them.
        """
        stage = self.hmms.trained[-1]
        assert stage.adaptation is not None  # checked with the settings
        assert self.hmm.sat is not None
        if part is self.material.train:
            own = stage.adaptation.transforms
            return own if speed == 1.0 else speed_transforms(self.hmms, speed, self.hmm.sat.fmllr)
        name = next(name for name, corpus in self._parts.items() if corpus is part)
        return self.two_pass.transforms(name, part)

    def prepare(self) -> HybridData:
        """Make features, Gaussian systems, alignments and search graphs that are missing.

        Raises:
            CorpusError, ValueError: some data cannot be used; the message names file and utterance.
        """
        self.check_words()
        half = self.hmms
        half.check_test()
        noise_source(half)  # its errors before the Gaussian systems, which take hours
        bins = self.front.bins if isinstance(half.network_front(self.material.train), LogMel) else None
        check_network(self.network, half.network_dims, bins, self.chunks)
        targets = self.targets
        with graphs_beside([self._words, *(self._search(stage, self.decoding.gmm) for stage in self._scored)]):
            return HybridData.prepare(self.hmms, targets)

    @cached_property
    def targets(self) -> Targets:
        """The pdf of every frame, and the frequency of each pdf."""
        stage = self.hmms.trained[-1]
        digest = None if self.realigned_by is None else read_pair(self.realigned_by)[1]["digest"]
        if self.absent == "refuse":
            return stored_targets(self.hmms, stage, digest)
        if self.realigned_by is None or digest is None:
            return make_targets(self.hmms, stage)
        first = make_targets(self.hmms, stage)
        model = self._read_model(self.realigned_by, first)
        scorers = {part: self._network_scorer(model, first, part) for part in ("train", "dev")}
        return realigned(self.hmms, stage, scorers, digest)

    @cached_property
    def data(self) -> HybridData:
        """The data of training and evaluation."""
        return HybridData.load(self.hmms, self.targets)

    @cached_property
    def _table(self) -> ChunkTable:
        return ChunkTable(self.data.train.lengths, **asdict(self.chunks), seed=self.seed)

    def model(self) -> nn.Module:
        """A fresh network, feats_NTF to logits_NTC over the pdfs."""
        return self._model(self.targets)

    def outputs_digest(self) -> str:
        """Digest of the states that the outputs stand for."""
        states = self.hmms.trained[-1].model.states
        return outputs_key(states.lang, states.transitions)

    @cached_property
    def data_digest(self) -> str:
        """Digest of utterances, texts and numbers of frames."""
        lengths = ((frames,) for frames in self.data.train.lengths.tolist())
        return digest_of(rows_of(self.material.train), lengths, rows_of(self.material.dev, self.data.dev_targets))

    def minibatch(self, n: int) -> ChunkBatch:
        """Minibatch n with its masks: a pure function of the task's fields and n."""
        return self._table.batch(n, self.data.train, self.change, self.data.versions)

    def piece(self, n: int, number: int, of: int) -> ChunkBatch | None:
        """Some chunks of minibatch n, with masks of their own."""
        return self._table.piece(n, number, of, self.data.train, self.change, self.data.versions)

    @cached_property
    def change(self) -> Change:
        """Augmentation of a training chunk's input; touches the spectrum alone, or without one the adapted features."""
        half, wanted = self.hmms, self.front.input
        if not wanted.of_speakers and half.delta_order == 0:
            return self.augment
        if not wanted.spectrum:
            return ChangeOfColumns(self.augment, half.network_dims - half.ivector_dims)
        return ChangeOfColumns(self.augment, half.spectrum_dims, half.delta_order + 1)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On dev, per frame: "loss" (cross-entropy, nats), "logprob" (its negative) and "frame accuracy"."""
        found = hybrid.frame_figures(model, self.data.dev_feats, self.data.dev_targets)
        return {"loss": found["loss"], "logprob": -found["loss"], "frame accuracy": found["accuracy"]}

    def test(self, model: nn.Module) -> Score:
        """Error rates of the Gaussian systems and of the network on dev and test, all settings tuned on dev."""
        return self.test_in(model, None)

    def test_in(self, model: nn.Module, kept: Path | None) -> Score:
        """`test`, with the decoding results saved in a folder and not decoded again."""
        decoder = DecodeHalf(self.material, self.decoding.tune_every, self.cache, kept)
        others = self._gaussian_results(decoder)
        results = others + self._network_results(decoder, model)
        figures = {name: value for result in results for name, value in result.figures.items()}
        return Score(figures, tuple(str(result) for result in results), results[-1].recognised, len(others))

    def recogniser(self) -> PortableRecogniser:
        """Everything besides the weights that recognition with the network needs, and the adapted Gaussian system."""
        words = self._words
        return PortableRecogniser(self._acoustic, words.sources, self.cache, words.built, self.hmms.adapted_gaussians)

    def utterances(self, part: str) -> Corpus:
        """Utterances of "train", "dev" or "test"."""
        found: Corpus = getattr(self.material, part)
        return found

    def system_names(self) -> Sequence[str]:
        """Names of the Gaussian systems, in the order of training."""
        return self.hmm.names

    def systems(self) -> Sequence[Stage]:
        """The Gaussian systems, trained if they are not stored yet."""
        return self.hmms.trained

    def aligned(self, system: Stage, part: str) -> Mapping[str, np.ndarray]:
        """Alignments of "train", "dev" or "test" by a Gaussian system, {utterance: transition-ids (T,)}."""
        return system.tids if part == "train" else self.hmms.alignment(system, self.utterances(part))

    @property
    def _acoustic(self) -> AcousticModel:
        half, train = self.hmms, self.material.train
        front, training = half.network_front(train), None
        if isinstance(front, LogMel) and self.front.input.spectrum:
            training = partial(training_statistics, train, front, self.cache, self.absent, half.normalised_order)
        return AcousticModel(
            front,
            half.delta_order,
            self.front.cmvn,
            self.network,
            half.network_dims,
            self.targets.pdfs,
            log_prior=self.targets.log_prior,
            training=training,
            speakers=self._speaker_inputs,
            normalised=self.front.normalised,
        )

    @property
    def _speaker_inputs(self) -> SpeakerInputs | None:
        """The parts of the network's input that depend on the speaker, for other speech."""
        half, wanted = self.hmms, self.front.input
        if not wanted.of_speakers:
            return None
        first_pass = self.two_pass.first_pass if wanted.fmllr else None
        gaussians = half.adapted_gaussians if wanted.fmllr else None
        extractor = None if wanted.ivector is None else half.extractor
        scale = 1.0 if wanted.ivector is None else wanted.ivector.scale
        return SpeakerInputs(half.cepstra, wanted.spectrum, gaussians, first_pass, extractor, scale)

    @cached_property
    def _words(self) -> WordSearch:
        """Search with the network's states."""
        return self._search(self.hmms.trained[-1], self.decoding.network)

    def _search(self, stage: Stage, search: Search) -> WordSearch:
        lexicon, language_models = self.sayable
        every = self.decoding.tune_every
        sources = HmmSources(stage.model.states, lexicon, self.silence, search, language_models, every)
        return WordSearch(sources, search.grammar, self.cache, self.jobs)

    @cached_property
    def sayable(self) -> tuple[Path, Mapping[str, Path]]:
        """Lexicon and language models of decoding."""
        material = self.material
        if self.vocabulary.text is None:
            return material.lexicon, material.language_models
        lexicon, made = self.vocabulary.made(material.lexicon, self.cache, self.absent)
        return lexicon, {**material.language_models, **made}

    def check_words(self) -> None:
        """Compare the words of decoding with the language model's and with those of dev, before any training.

        Raises:
            SettingError: no word of dev can be recognised.
        """
        lexicon, models = self.sayable
        words = decoding_words(lexicon, models.get(self.decoding.network.grammar))
        check_known(self.material.dev.texts, words, "dev")

    @cached_property
    def silence(self) -> float:
        """Probability of a silence between words, in decoding graphs."""
        if self.decoding.silence_probability is not None:
            return self.decoding.silence_probability
        return self.hmms.trained[-1].silence_share(self.material.train.texts)

    @property
    def _scored(self) -> Sequence[Stage]:
        """The Gaussian systems listed in `decoding.scored`."""
        return {"all": self.hmms.trained, "last": self.hmms.trained[-1:], "none": ()}[self.decoding.scored]

    def _gaussian_results(self, decoder: DecodeHalf) -> list[DecodingResult]:
        """Error rates of the scored Gaussian systems."""
        return [result for stage in self._scored for result in self._results_of(stage, decoder, self._parts)]

    def _results_of(self, stage: Stage, decoder: DecodeHalf, parts: Mapping[str, Corpus]) -> list[DecodingResult]:
        """Error rates of a Gaussian system, in two passes if it is speaker-adapted."""
        if stage.adaptation is None:
            return decoder.evaluate(self._gaussians(stage), parts)
        return self._two_pass(stage, decoder).results(parts)

    def _two_pass(self, stage: Stage, decoder: DecodeHalf) -> TwoPass:
        search = self.decoding.gmm
        words, feats = self._search(stage, search), functools.cache(lambda name: self.hmms.features(self._parts[name]))
        return TwoPass(stage, words, search, feats, decoder, self.cache, self.jobs, self.absent)

    @cached_property
    def two_pass(self) -> TwoPass:
        """Two-pass decoding with the last Gaussian system, for its transforms alone."""
        decoder = DecodeHalf(self.material, self.decoding.tune_every, self.cache)
        return self._two_pass(self.hmms.trained[-1], decoder)

    def _network_results(self, decoder: DecodeHalf, model: nn.Module) -> list[DecodingResult]:
        """Error rates of a network."""
        scorers = {part: self._network_scorer(model, self.targets, part) for part in self._parts}
        return decoder.evaluate(System("network", self._words, self.decoding.network, scorers), self._parts)

    @property
    def _parts(self) -> dict[str, Corpus]:
        return {"dev": self.material.dev, "test": self.material.test}

    def _gaussians(self, stage: Stage) -> System:
        feats = {name: self.hmms.features(part) for name, part in self._parts.items()}
        scorers = {part: partial(_gaussian_scores, stage.model, feats[part]) for part in feats}
        search = self.decoding.gmm
        return System(stage.name, self._search(stage, search), search, scorers)

    def _network_scorer(self, model: nn.Module, targets: Targets, part: str) -> Scorer:
        feats = self.hmms.network_features(getattr(self.material, part))
        return partial(_network_scores, model, feats, targets)

    def _model(self, targets: Targets) -> nn.Module:
        return self.network.build(self.hmms.network_dims, targets.pdfs)

    def _read_model(self, stem: Path, targets: Targets) -> nn.Module:
        tensors, _ = read_pair(stem)
        model = self._model(targets)
        Layout.trainable(model).scatter(tensors["weights"])
        return model


def _gaussian_scores(model: HmmGmm, feats: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return model.loglikes(feats[name])


def _network_scores(model: nn.Module, feats: Mapping[str, np.ndarray], targets: Targets, name: str) -> np.ndarray:
    return hybrid.log_likelihoods(model, feats[name], targets.log_prior)
