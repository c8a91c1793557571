"""Hybrid HMM and network, from audio to a word error rate: Gaussian systems align, a network learns their states.

    murmur train digits_hybrid                               (digits spoken by espeak-ng)
    murmur train librispeech --set task.corpus=FOLDER        (and yesno, fsdd, an4: see the recipes of these names)

Any folder with data/{train,test} and lexicon.txt works: `murmur train hybrid --set task.corpus=FOLDER`. Every stage is
stored in `task.cache`, and a killed run continues from there. Bourlard and Morgan, "Connectionist speech
recognition" (1994); Hinton et al., "Deep neural networks for acoustic modeling in speech recognition" (2012).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from murmur.engine.stacked import NotStackable
from murmur.engine.task import Loss, Score, Unmade
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.decoding.graph_store import outputs_key
from murmur.speech.features.analysis import LogMel
from murmur.speech.tasks.acoustic_model import AcousticModel, training_statistics
from murmur.speech.tasks.chunk_learning import ChunkLearning
from murmur.speech.tasks.hybrid.chain import ChainLearning
from murmur.speech.tasks.hybrid.config import ChainMmi, CrossEntropy, LatticeFree
from murmur.speech.tasks.hybrid.decode import DecodeHalf, DecodingResult, System
from murmur.speech.tasks.hybrid.hmm import input_dims
from murmur.speech.tasks.hybrid.learning import CrossEntropyLearning, Learning
from murmur.speech.tasks.hybrid.sequence import SequenceLearning
from murmur.speech.tasks.hybrid.stage import Stage
from murmur.speech.tasks.hybrid.system import HybridSystem
from murmur.speech.tasks.prepared import (
    digits_to_make,
    extractor_to_make,
    features_of,
    frames_to_make,
    speech_hours,
    systems_to_make,
)
from murmur.speech.tasks.recogniser import PortableRecogniser
from murmur.speech.tasks.word_search import WordSearch, graphs_beside

LEARNING: Mapping[type, type[Learning]] = {
    CrossEntropy: CrossEntropyLearning,
    LatticeFree: SequenceLearning,
    ChainMmi: ChainLearning,
}


@dataclass(frozen=True)
class HybridTask(HybridSystem):
    """Training of a network on the states of an HMM by a criterion, and decoding with HCLG.

    By default the criterion is cross-entropy on the tied states of a Gaussian system.
    """

    @cached_property
    def learning(self) -> Learning:
        """Training of the network by the criterion."""
        for criterion, learning in LEARNING.items():
            if isinstance(self.criterion, criterion):
                return learning(self)
        known = ", ".join(kind.__name__ for kind in LEARNING)
        raise ValueError(f"task.criterion = {self.criterion}: not one of {known}, or a subclass")

    def check(self) -> None:
        """Check for missing files, unknown grammars, missing libraries, and settings that do not fit the criterion."""
        super().check()
        self.learning.check()

    def unprepared(self) -> list[Unmade]:
        """Digits, features, Gaussian systems and frames that are missing from the cache.

        Guesses the words without a pronunciation if `guess` is set: the names of the systems depend on them.
        """
        if not self.criterion.aligned:
            return self.unmade_features(("train", "dev"), self.front.bins, self.hmms.network_front)
        if self.lacks_digits:
            spoken, all_hours = digits_to_make(self.cache, self.digits)
            hours = {part: all_hours[part] for part in ("train", "dev")}  # test is not used before the end
            found = [spoken, *features_of(hours, self.front.cepstra, self.cache, "cepstra")]
            if self.front.input.spectrum:
                found += features_of(hours, self.front.bins, self.cache, "log-mel features")
            missing, extractor = self.hmm.names, self.front.input.ivector
        else:
            parts = {"train": self.material.train, "dev": self.material.dev}
            hours = {name: speech_hours(part) for name, part in parts.items()}
            found = self.hmms.features_to_make(parts)
            missing, stage = self.hmms.untrained(), self.hmms.ivector_stage
            extractor = None if stage is None or not stage.untrained() else stage.config
        systems = {name: getattr(self.hmm, name) for name in missing}
        found += systems_to_make(systems, hours["train"], self.cache, self.jobs)
        if extractor is not None:
            found.append(extractor_to_make(extractor, hours["train"], self.cache))
        if missing or not any(self.cache.glob("frames-*")):
            values = {"float32": 4, "float16": 2, "uint8": 1}[self.front.storage]
            train = hours["train"] * len(self.front.stored.speeds)
            spectrum = (1 + (self.front.input.deltas or 0)) * self.front.bins
            dims = input_dims(self.front, self.hmm, spectrum)
            found.append(frames_to_make(train, dims, values, self.cache))
        return found

    def prepare(self) -> None:
        """Make features, Gaussian systems, alignments, numerators and search graphs that are missing."""
        self.check_words()
        self.hmms.check_test()
        self.learning.make_states()
        gaussian = [self.search_with(stage.model.states, self.decoding.gmm) for stage in self._scored]
        with graphs_beside([self._words, *gaussian]):
            self.learning.make_data()

    @property
    def per_epoch(self) -> int:
        """Minibatches in one pass over the training data, stored copies at other speeds included."""
        return self.learning.order.per_epoch

    @property
    def samples_per_epoch(self) -> float:
        """Frames of the network's outputs in one pass; speeds drawn on the fly count as speed 1."""
        return self.learning.samples_per_epoch

    def model(self) -> nn.Module:
        """A fresh network, feats_NTF (and lengths_N, if its `stack` is not 1) to outputs over the pdfs."""
        return self.network.build(self.hmms.network_dims, self.learning.states.tree.num_pdfs)

    def outputs_digest(self) -> str:
        """Digest of the states that the outputs stand for."""
        return outputs_key(self.learning.states.lang, self.learning.states.transitions)

    @property
    def data_digest(self) -> str:
        return self.learning.data_digest

    @property
    def most_pieces(self) -> int:
        return self.chunks.size

    def piece(self, n: int, number: int, of: int) -> Any:
        return self.learning.piece(n, number, of)

    def loss(self, model: nn.Module, minibatch: Any) -> Loss:
        return self.learning.loss(model, minibatch)

    @property
    def continues(self) -> str | None:
        return self.criterion.continues

    def tensors(self, minibatch: Any) -> tuple[tuple[Tensor, ...], float]:
        """See `Stackable`."""
        return self._stackable.tensors(minibatch)

    def total(self, model: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        return self._stackable.total(model, *tensors)

    def filled(self, tensors: tuple[Tensor, ...], units: int) -> tuple[Tensor, ...]:
        return self._stackable.filled(tensors, units)

    @property
    def _stackable(self) -> ChunkLearning:
        if not isinstance(self.learning, CrossEntropyLearning):
            raise NotStackable(f"minibatches of {type(self.criterion).__name__} hold graphs, which are not stacked")
        return self.learning

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return self.learning.evaluate(model)

    def test_in(self, model: nn.Module, kept: Path | None) -> Score:
        """Error rates of the Gaussian systems and of the network on dev and test, all settings tuned on dev."""
        decoder = DecodeHalf(self.material, self.decoding.tune_every, self.cache, kept)
        parts = self.scored_parts
        others = [result for stage in self._scored for result in self._results_of(stage, decoder, parts)]
        scorers = {part: self.network_scorer(model, self.learning.log_prior, part) for part in parts}
        network = System("network", self._words, self.decoding.network, scorers)
        results = others + decoder.evaluate(network, parts)
        figures = {name: value for result in results for name, value in result.figures.items()}
        return Score(figures, tuple(str(result) for result in results), results[-1].recognised, len(others))

    def recogniser(self) -> PortableRecogniser:
        words = self._words
        return PortableRecogniser(self._acoustic, words.sources, self.cache, words.built, self.learning.gaussians)

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
            self.learning.states.tree.num_pdfs,
            self.network.stack,
            self.learning.log_prior,
            training,
            self.speaker_inputs,
            self.front.normalised,
        )

    @cached_property
    def _words(self) -> WordSearch:
        shift = self.hmms.network_front(self.material.train).frame_shift_seconds
        return self.search_with(self.learning.states, self.decoding.network, 1.0 / (shift * self.network.stack))

    @property
    def _scored(self) -> Sequence[Stage]:
        """The Gaussian systems listed in `decoding.scored`; a flat start has none."""
        if not self.criterion.aligned or self.decoding.scored == "none":
            return ()
        return self.hmms.trained if self.decoding.scored == "all" else self.hmms.trained[-1:]

    def _results_of(self, stage: Stage, decoder: DecodeHalf, parts: Mapping[str, Corpus]) -> list[DecodingResult]:
        """Error rates of a Gaussian system, in two passes if it is speaker-adapted."""
        if stage.adaptation is None:
            return decoder.evaluate(self._gaussians(stage), parts)
        return self.two_pass_of(stage, decoder).results(parts)

    def _gaussians(self, stage: Stage) -> System:
        feats = {name: self.hmms.features(part) for name, part in self.scored_parts.items()}
        scorers = {part: lambda name, own=own: stage.model.loglikes(own[name]) for part, own in feats.items()}
        search = self.decoding.gmm
        return System(stage.name, self.search_with(stage.model.states, search), search, scorers)
