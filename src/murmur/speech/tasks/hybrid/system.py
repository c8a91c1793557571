"""Hybrid system without its network's training: set, features, Gaussian systems, aligned frames, search."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor, nn

from murmur.core.errors import SettingError
from murmur.core.flat import Layout
from murmur.engine.checkpoints.checkpoint import read_pair
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.corpus.synth import check_installed
from murmur.speech.features.augment import ChangeOfColumns, SpecAugment
from murmur.speech.features.chunks import Change, Chunks, at_speed
from murmur.speech.features.derived import ChangedArrays, shape_of
from murmur.speech.hmm.fmllr import FmllrConfig, Transforms, transforms_from_paths
from murmur.speech.hmm.model import HmmStates
from murmur.speech.hmm.storage import load_transforms, save_transforms
from murmur.speech.models import Network, Tdnn
from murmur.speech.tasks import corpora
from murmur.speech.tasks.acoustic_model import scores_of
from murmur.speech.tasks.chunk_learning import Precision
from murmur.speech.tasks.graph_sources import HmmSources, Search, check_named, first_options
from murmur.speech.tasks.hybrid.config import ChainMmi, Criterion, CrossEntropy, Decoding, FrontEnd, HmmStages
from murmur.speech.tasks.hybrid.data import HybridData, Targets, check_noise, make_targets, realigned
from murmur.speech.tasks.hybrid.decode import DecodeHalf, Scorer, TwoPass
from murmur.speech.tasks.hybrid.hmm import HmmHalf
from murmur.speech.tasks.hybrid.stage import Stage
from murmur.speech.tasks.prepared import read_or_make
from murmur.speech.tasks.pronouncing import TextVocabulary, completed_lexicon
from murmur.speech.tasks.speaker_inputs import SpeakerInputs
from murmur.speech.tasks.speech_task import SpeechTask
from murmur.speech.tasks.vocabulary import check_known, decoding_words
from murmur.speech.tasks.word_search import WordSearch

log = logging.getLogger(__name__)
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
class HybridSystem(SpeechTask):
    """Settings of a hybrid system, and everything of it that its network's training does not change.

    Attributes:
        loader: kind of set in the folder, see `murmur.speech.tasks.corpora`.
        front: features.
        hmm: Gaussian systems; the last one aligns.
        network: type and size of the network.
        criterion: criterion of training the network.
        chunks: options for cutting utterances; of chain models, `size` is the number of utterances in a minibatch.
        augment: changes of every training chunk, without tempo, which would move frames away from their targets.
        precision: number format of the network's matrix products in training; decoding uses float32.
        decoding: grammars and tuning; the acoustic scales for a chain model's network include 1.
        vocabulary: text whose words and language models replace those of the set in decoding.
        realigned_by: an earlier network of this task (its folder's `model`), whose alignments replace the Gaussian
            ones.
    """

    loader: Loader = "folder"
    front: FrontEnd = field(default_factory=FrontEnd)
    hmm: HmmStages = field(default_factory=HmmStages)
    network: Network = field(default_factory=Tdnn)
    criterion: Criterion = field(default_factory=CrossEntropy)
    chunks: Chunks = field(default_factory=Chunks)
    augment: SpecAugment = field(default_factory=SpecAugment)
    precision: Precision = "float32"
    decoding: Decoding = field(default_factory=Decoding)
    vocabulary: TextVocabulary = field(default_factory=TextVocabulary)
    realigned_by: Path | None = None

    def __post_init__(self) -> None:
        if self.augment.tempo:
            raise ValueError(f"augment.tempo = {self.augment.tempo}: targets are per frame; use front.speeds")
        if self.network.stack != 1 and not isinstance(self.criterion, ChainMmi):
            raise ValueError(f"network.stack = {self.network.stack}: every frame has a target, so it must be 1")
        wanted = self.front.input
        if wanted.fmllr and self.hmm.sat is None:
            raise ValueError("front.input.fmllr needs transforms: set 'hmm.sat=SatConfig()'")
        if wanted.of_speakers and getattr(self.network, "front", None) is not None:
            raise ValueError(
                "network.front with adapted features or an i-vector in front.input: they are no frequencies,"
                " over which convolutions could move: set network.front=None, or leave them out"
            )
        if not wanted.spectrum and (self.augment.warp or self.augment.bin_masks):
            raise ValueError(
                f"augment.warp = {self.augment.warp} and augment.bin_masks = {self.augment.bin_masks} with an input "
                "without spectrum: columns of adapted features are not frequencies: set both to 0"
            )

    def check(self) -> None:
        """Check for missing files, unknown grammars and missing libraries, before any work starts."""
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

    def check_grammar(self, name: str, option: str) -> None:
        own = () if self.corpus is None else corpora.NEEDS[self.loader].language_models
        check_named(name, sorted({*own, *self.vocabulary.names}), option)

    @cached_property
    def material(self) -> corpora.SpeechSet:
        if self.corpus is None:
            return corpora.LOADERS["folder"](self.root)
        found = corpora.LOADERS[self.loader](Path(self.corpus))
        return replace(found, lexicon=self._completed(found.lexicon, found.train))

    def _completed(self, lexicon: Path, train: Corpus) -> Path:
        if self.guess == "none":
            return lexicon
        return completed_lexicon(lexicon, train.texts.values(), self.guess, self.cache, self.absent)

    @cached_property
    def hmms(self) -> HmmHalf:
        own = None if self.corpus is None else Path(self.corpus) / "lexicon.txt"
        lexicon = self.material.lexicon
        if own is not None and own.is_file():
            lexicon = self._completed(own, self.material.train)
        transforms = self._transforms if self.front.input.fmllr else None
        return HmmHalf(self.material, lexicon, self.front, self.hmm, self.cache, self.work, self.absent, transforms)

    def _transforms(self, part: Corpus, speed: float) -> Transforms:
        """Transforms of the speakers of train, dev or test; those of dev and test come from decoding."""
        stage = self.hmms.trained[-1]
        assert stage.adaptation is not None  # checked with the settings
        assert self.hmm.sat is not None
        if part is self.material.train:
            own = stage.adaptation.transforms
            return own if speed == 1.0 else self._transforms_at(speed, self.hmm.sat.fmllr)
        name = next(name for name, corpus in self.scored_parts.items() if corpus is part)
        return self.two_pass.transforms(name, part)

    def _transforms_at(self, speed: float, config: FmllrConfig) -> Transforms:
        """The transforms of train at another speed, of which a speaker is taken for another speaker.

        The alignment of a copy is that of speed 1, stretched to its frames.
        """
        half, stage, train = self.hmms, self.hmms.trained[-1], self.material.train

        def make() -> Transforms:
            every = half.features(train, speed)
            names = [name for name in every if name in stage.tids]
            feats, tids = every.part(names), stage.tids.part(names)
            paths = ChangedArrays(tids, lambda name, tids_T: at_speed(tids_T, shape_of(feats, name)[0]))
            return transforms_from_paths(stage.pair, feats, paths, train.speakers, config, self.work)

        path = self.cache / f"{stage.name}-{stage.key}-speed-{speed:g}-transforms.npz"
        what = f"the transforms of train at speed {speed:g}"
        return read_or_make(path, load_transforms, make, save_transforms, self.absent, what)

    @cached_property
    def targets(self) -> Targets:
        """The pdf of every frame, and the frequency of each pdf."""
        stage, model = self.hmms.trained[-1], self.realigned_by
        if model is None:
            return make_targets(self.hmms, stage)
        tensors, facts = read_pair(model)

        def scores(part: str) -> ChangedArrays:
            first, feats = make_targets(self.hmms, stage), self.hmms.network_features(self.utterances(part))
            network = self.network.build(self.hmms.network_dims, first.pdfs)
            Layout.trainable(network).scatter(tensors["weights"])
            return ChangedArrays(
                feats, lambda _, feats_TF: scores_of(network, feats_TF, first.log_prior, self.network.stack), first.pdfs
            )

        return realigned(self.hmms, stage, scores, facts["digest"])

    @cached_property
    def data(self) -> HybridData:
        return HybridData.load(self.hmms, self.targets)

    @cached_property
    def change(self) -> Change:
        """Augmentation of a training chunk's input; touches the spectrum alone, or without one the adapted features."""
        half, wanted = self.hmms, self.front.input
        if not wanted.of_speakers and half.delta_order == 0:
            return self.augment
        if not wanted.spectrum:
            return ChangeOfColumns(self.augment, half.network_dims - half.ivector_dims)
        return ChangeOfColumns(self.augment, half.spectrum_dims, half.delta_order + 1)

    def utterances(self, part: str) -> Corpus:
        found: Corpus = getattr(self.material, part)
        return found

    def aligned(self, system: Stage, part: str) -> Mapping[str, np.ndarray]:
        """Alignments of "train", "dev" or "test" by a Gaussian system, {utterance: transition-ids (T,)}."""
        return system.tids if part == "train" else self.hmms.alignment(system, self.utterances(part))

    @property
    def speaker_inputs(self) -> SpeakerInputs | None:
        """The parts of the network's input that depend on the speaker, for other speech."""
        half, wanted = self.hmms, self.front.input
        if not wanted.of_speakers:
            return None
        first_pass = self.two_pass.first_pass if wanted.fmllr else None
        gaussians = half.adapted_gaussians if wanted.fmllr else None
        extractor = None if wanted.ivector is None else half.extractor
        scale = 1.0 if wanted.ivector is None else wanted.ivector.scale
        return SpeakerInputs(half.cepstra, wanted.spectrum, gaussians, first_pass, extractor, scale)

    def search_with(self, states: HmmStates, search: Search, frames_per_second: float = 100.0) -> WordSearch:
        lexicon, language_models = self.sayable
        every = self.decoding.tune_every
        sources = HmmSources(states, lexicon, self.silence, search, language_models, every)
        return WordSearch(sources, search.grammar, self.cache, self.work, frames_per_second)

    @cached_property
    def sayable(self) -> tuple[Path, Mapping[str, Path]]:
        material = self.material
        if self.vocabulary.text is None:
            return material.lexicon, material.language_models
        lexicon, made = self.vocabulary.made(material.lexicon, self.cache, self.absent)
        return lexicon, {**material.language_models, **made}

    def check_words(self) -> None:
        """Compare the words of decoding with the language model's and with those of dev, before any training."""
        lexicon, models = self.sayable
        words = decoding_words(lexicon, models.get(self.decoding.network.grammar))
        check_known(self.material.dev.texts, words, "dev")

    @cached_property
    def silence(self) -> float:
        """Probability of a silence between words, in decoding graphs; without alignments that of training."""
        if self.decoding.silence_probability is not None:
            return self.decoding.silence_probability
        if not self.criterion.aligned:
            return self.hmms.lang.silence_probability
        return self.hmms.trained[-1].silence_share(self.material.train.texts)

    def two_pass_of(self, stage: Stage, decoder: DecodeHalf) -> TwoPass:
        """Two-pass decoding with a speaker-adapted Gaussian system."""
        search = self.decoding.gmm
        words = self.search_with(stage.model.states, search)
        feats = functools.cache(lambda name: self.hmms.features(self.scored_parts[name]))
        return TwoPass(stage, words, search, feats, decoder, self.work, self.absent)

    @cached_property
    def two_pass(self) -> TwoPass:
        """Two-pass decoding with the last Gaussian system, for its transforms alone."""
        decoder = DecodeHalf(self.material, self.decoding.tune_every, self.cache)
        return self.two_pass_of(self.hmms.trained[-1], decoder)

    @property
    def scored_parts(self) -> dict[str, Corpus]:
        return {"dev": self.material.dev, "test": self.material.test}

    def network_scorer(self, model: nn.Module, log_prior: Tensor | None, part: str) -> Scorer:
        """Function from an utterance of a part to the scores of a network."""
        feats, stack = self.hmms.network_features(getattr(self.material, part)), self.network.stack
        return lambda name: scores_of(model, feats[name], log_prior, stack)
