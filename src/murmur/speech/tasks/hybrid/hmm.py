"""The Gaussian half of the hybrid recipe: monophones, triphones, LDA+MLLT, SAT and alignments, each stage stored.

A stage is a model and its alignments, two files named by a digest of everything that made them; a speaker-adapted stage
has two more, its model of unadapted features and the transforms of the training speakers. Stages that are missing,
damaged or cut short are made again; the others are read.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from murmur.core.counted import counted
from murmur.engine.task import Unmade
from murmur.execution.executors import Jobs, whole_host
from murmur.speech.corpus.corpus import Corpus, CorpusError, left_out
from murmur.speech.features.analysis import (
    Front,
    LogMel,
    Mfcc,
    Ready,
    ReadyAtSpeed,
    check_readable,
    digest,
    sample_rate_hz,
)
from murmur.speech.features.derived import DerivedFeatures
from murmur.speech.features.feature_store import FeatureStore, normalisation, prepare
from murmur.speech.hmm.align import align, align_adapted
from murmur.speech.hmm.em_loop import PassReport, Progress, Trained
from murmur.speech.hmm.fmllr import Transforms
from murmur.speech.hmm.ivector import Extractor, ivectors
from murmur.speech.hmm.lda_mllt import train_lda_mllt
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.monophone import train_monophone
from murmur.speech.hmm.sat import SatConfig, SatTrained, train_sat
from murmur.speech.hmm.storage import (
    StoredAlignments,
    load_alignments,
    load_model,
    load_transforms,
    save_alignments,
    save_model,
    save_transforms,
)
from murmur.speech.hmm.triphone import train_triphone
from murmur.speech.lexicon.lexicon import Lang, make_lang, read_lexicon, split_known
from murmur.speech.tasks.corpora import SpeechSet
from murmur.speech.tasks.hybrid.config import FrontEnd, HmmStages
from murmur.speech.tasks.hybrid.stage import Adaptation, IvectorStage, Stage, stored_alignment
from murmur.speech.tasks.prepared import Absent, features_to_make, read_or_make
from murmur.speech.tasks.speaker_inputs import AdaptedGaussians, SpeakerColumns, all_joined

log = logging.getLogger(__name__)
FORMAT = 1


@dataclass(frozen=True)
class HmmHalf:
    """Features and Gaussian systems of a set.

    Attributes:
        lexicon: pronunciations for the transcripts; decoding may use a larger lexicon over the same phones.
        transforms: function from a part of the set and a speed to the transforms of its speakers, for an input with
            adapted features; None for others.
    """

    material: SpeechSet
    lexicon: Path
    front: FrontEnd
    stages: HmmStages
    cache: Path
    jobs: Jobs = 1
    absent: Absent = "make"
    transforms: Callable[[Corpus, float], Transforms] | None = None

    @cached_property
    def lang(self) -> Lang:
        return make_lang(read_lexicon(self.lexicon), silence_probability=self.stages.silence_probability)

    @cached_property
    def train_feats(self) -> DerivedFeatures:
        """Features of train for the Gaussian systems, {utterance: (T, 3 cepstra)}."""
        return self.features(self.material.train)

    @cached_property
    def train_texts(self) -> dict[str, str]:
        return {u: text for u, text in self.material.train.texts.items() if u in self.train_feats}

    def features(self, part: Corpus, speed: float = 1.0) -> DerivedFeatures:
        """Cepstra less their mean over the speaker, with two orders of deltas, at one playback speed."""
        return DerivedFeatures.gaussian(self.store(part, self._cepstra(part, speed)), part.speakers)

    def network_features(self, part: Corpus, speed: float = 1.0) -> Mapping[str, np.ndarray]:
        """Input of the network, at one playback speed, computed as it is taken.

        Raises:
            ValueError: the speed is not 1, for a set that brings features of an unknown analysis.
        """
        columns, front, normal = self.speaker_columns(part, speed), self.front, None
        if front.input.spectrum:
            store = self.network_store(part, speed)
            pairs = normalisation(store, front.cmvn, whole_host(self.jobs), delta_order=self.normalised_order)
            normal = DerivedFeatures(store.part([*store]), pairs, self.delta_order, front.normalised)
        return all_joined(normal, columns)

    def speaker_columns(self, part: Corpus, speed: float = 1.0) -> SpeakerColumns | None:
        """The parts of the network's input that depend on the speaker; None for an input without.

        Speech at another speed is taken for that of other speakers. In train, i-vectors are those of a few utterances
        of a speaker, see `IvectorConfig.utterances`; elsewhere of all.
        """
        wanted = self.front.input
        if not wanted.of_speakers:
            return None
        feats, speakers = self.features(part, speed), part.speakers
        columns = SpeakerColumns(feats, speakers)
        if self.transforms is not None:
            transforms, projection = self.transforms(part, speed), self.trained[-1].model.projection
            columns = SpeakerColumns(feats, speakers, transforms, projection)
        if wanted.ivector is not None:
            few = wanted.ivector.utterances if part is self.material.train else 0
            found = ivectors(self.extractor, feats, speakers, wanted.ivector.scale, few)
            columns = replace(columns, ivectors=found)
        return columns

    @property
    def ivector_stage(self) -> IvectorStage | None:
        """Training of the extractor of i-vectors; None for an input without."""
        config = self.front.input.ivector
        if config is None:
            return None
        return IvectorStage(config, f"{self.material.train.digest()} {digest(self.cepstra)}", self.cache, self.absent)

    @cached_property
    def extractor(self) -> Extractor:
        stage = self.ivector_stage
        assert stage is not None  # the input has an i-vector
        return stage.extractor(lambda: self.train_feats, self.material.train.speakers)

    def network_store(self, part: Corpus, speed: float = 1.0) -> FeatureStore:
        """The source of `network_features`, without normalisation and without derivatives."""
        return self.store(part, self.brought(speed) if _brings_features(part) else self.log_mel(part, speed))

    def network_front(self, part: Corpus) -> LogMel | Ready:
        """The network's analysis of audio, or the features that a part brings."""
        return Ready(self.front.cepstra) if _brings_features(part) else self.log_mel(part)

    def brought(self, speed: float = 1.0) -> Ready:
        """The features that a set brings, or those of a copy at another speed.

        Raises:
            ValueError: the speed is not 1, and the analysis is unknown.
        """
        if speed == 1.0:
            return Ready(self.front.cepstra)
        if self.material.analysis is None:
            raise ValueError(
                f"speed {speed} needs audio, but this set brings features of an unknown analysis: set "
                "task.front.speeds=(1.0,)"
            )
        return ReadyAtSpeed(self.front.cepstra, speed=speed, analysis=self.material.analysis)

    def log_mel(self, part: Corpus, speed: float = 1.0) -> LogMel:
        return LogMel(rate_hz=self._rate_hz(part), bins=self.front.bins, speed=speed)

    @property
    def delta_order(self) -> int:
        """Number of derivatives of the spectrum that the network sees."""
        if self.front.input.deltas is not None:
            return self.front.input.deltas
        return 2 if _brings_features(self.material.train) else 0

    @property
    def normalised_order(self) -> int:
        """Number of derivatives of the spectrum that are normalised by statistics of their own."""
        return self.delta_order if self.front.normalised == "all" else 0

    @property
    def spectrum_dims(self) -> int:
        """Values per frame of the spectrum, without derivatives."""
        return self.front.cepstra if _brings_features(self.material.train) else self.front.bins

    @property
    def network_dims(self) -> int:
        return input_dims(self.front, self.stages, (self.delta_order + 1) * self.spectrum_dims)

    @property
    def ivector_dims(self) -> int:
        return 0 if self.front.input.ivector is None else self.front.input.ivector.dims

    def store(self, part: Corpus, front: Front) -> FeatureStore:
        return prepare(part, front, self.cache, whole_host(self.jobs), progress=True)

    @cached_property
    def trained(self) -> tuple[Stage, ...]:
        """All stages, the last one best; trained if they are not stored yet."""
        done = [self._stage("monophone", "", self._monophone)]
        followers = (("triphone", train_triphone), ("lda", train_lda_mllt), ("sat", self._sat))
        for name, train in followers:
            config = getattr(self.stages, name)
            if config is not None:
                previous = done[-1]

                def make(previous=previous, config=config, train=train) -> Trained:
                    return train(previous.model, self.train_feats, self.train_texts, config, self.jobs, log_pass)

                done.append(self._stage(name, previous.key, make))
        return tuple(done)

    @property
    def adapted_gaussians(self) -> AdaptedGaussians | None:
        """The last stage as a recogniser; None if it is not speaker-adapted."""
        stage, front = self.trained[-1], self.cepstra
        if stage.adaptation is None:
            return None
        return AdaptedGaussians(stage.name, front, stage.pair, stage.adaptation.decoding)

    def untrained(self) -> list[str]:
        """Systems missing from the cache, and the systems that follow them; trains and reads nothing."""
        previous = ""
        for place, name in enumerate(self.stages.names):
            previous = self._key(name, previous)
            if not all(path.is_file() for path in self._files(name, previous)):
                return self.stages.names[place:]
        return []

    def features_to_make(self, parts: Mapping[str, Corpus]) -> list[Unmade]:
        """Cepstra and network features of these parts that are missing from the cache."""
        train, wanted, found = parts["train"], self.front.input, list[Unmade]()

        def add(what: str, front: Callable[[Corpus, float], Front], copies: bool) -> None:
            found.extend(features_to_make(parts, front(train, 1.0), self.cache, what))
            for speed in self.front.stored.speeds:
                if copies and speed != 1.0:
                    own = features_to_make(
                        {"train": train}, front(train, speed), self.cache, f"{what} at speed {speed:g}"
                    )
                    found.extend(own)

        if _brings_features(train):
            add("features", self._cepstra, copies=True)
            return found
        add("cepstra", self._cepstra, copies=wanted.of_speakers)
        if wanted.spectrum:
            add("log-mel features", self.log_mel, copies=True)
        return found

    def check_test(self) -> None:
        """Check the recordings of test, which are read after training."""
        test = self.material.test
        if _brings_features(test):
            return
        try:
            check_readable(test, self._rate_hz(test))
        except CorpusError as error:
            raise CorpusError(f"test: {error}") from error

    def alignment(self, stage: Stage, part: Corpus) -> StoredAlignments:
        """Alignments of another part by a stage, stored like its own."""
        key = _digest([stage.key, part.digest()])
        texts = split_known(self.lang, part.texts)[0]

        def make() -> StoredAlignments:
            feats = self.features(part).part(list(texts))
            if stage.adaptation is None:
                return align(stage.model, feats, texts, jobs=self.jobs)
            settings = self._sat_config.fmllr
            return align_adapted(stage.pair, feats, texts, part.speakers, settings, jobs=self.jobs)

        path = self.cache / f"{stage.name}-{key}-alignment.npz"
        return stored_alignment(stage.model, path, make, self.absent)

    def _monophone(self) -> Trained:
        return train_monophone(
            self.lang, self.train_feats, self.train_texts, self.stages.monophone, self.jobs, log_pass
        )

    @property
    def _sat_config(self) -> SatConfig:
        assert self.stages.sat is not None  # the stage exists
        return self.stages.sat

    def _sat(
        self,
        previous: HmmGmm,
        feats: DerivedFeatures,
        texts: dict[str, str],
        config: SatConfig,
        jobs: Jobs,
        progress: Progress,
    ) -> Trained:
        return train_sat(previous, feats, texts, self.material.train.speakers, config, jobs, progress)

    @property
    def cepstra(self) -> Mfcc | Ready:
        train = self.material.train
        return Ready(self.front.cepstra) if _brings_features(train) else self._mfcc(train)

    def _cepstra(self, part: Corpus, speed: float = 1.0) -> Front:
        return self.brought(speed) if _brings_features(part) else self._mfcc(part, speed)

    def _mfcc(self, part: Corpus, speed: float = 1.0) -> Mfcc:
        return Mfcc(rate_hz=self._rate_hz(part), cepstra=self.front.cepstra, speed=speed)

    def _rate_hz(self, part: Corpus) -> int:
        """Rate of train: frames of another rate would have other filters, so a part at another rate is refused."""
        return sample_rate_hz(part if _brings_features(self.material.train) else self.material.train)

    def _key(self, name: str, previous: str) -> str:
        config = asdict(getattr(self.stages, name))
        lexicon = hashlib.sha256(self.lexicon.read_bytes()).hexdigest()
        content = [FORMAT, name, config, previous, self.stages.silence_probability, self.front.cepstra, lexicon]
        return _digest([*content, self.material.train.digest()])

    def _files(self, name: str, key: str) -> tuple[Path, ...]:
        """Model and alignments of a stage; of a speaker-adapted one also its unadapted model and the transforms."""
        ends = (".npz", "-alignment.npz", *(("-unadapted.npz", "-transforms.npz") if name == "sat" else ()))
        return tuple(self.cache / f"{name}-{key}{end}" for end in ends)

    def _stage(self, name: str, previous: str, make: Callable[[], Trained]) -> Stage:
        key = self._key(name, previous)
        files = self._files(name, key)

        def made() -> Stage:
            trained, adaptation = make(), None
            if trained.lost:
                log.warning("%s: %s", name, left_out("utterance", sorted(trained.lost.items())))
            if isinstance(trained, SatTrained):
                adaptation = Adaptation(trained.unadapted, trained.transforms, self._sat_config.decoding)
            return Stage(name, trained.model, trained.tids, key, adaptation)

        def write(stage: Stage, path: Path) -> Stage:
            if stage.adaptation is not None:
                save_model(stage.adaptation.unadapted, files[2])
                save_transforms(stage.adaptation.transforms, files[3])
            tids = save_alignments(stage.model, stage.tids, files[1])
            save_model(stage.model, path)
            return replace(stage, tids=tids)

        what = "the Gaussian system"
        return read_or_make(files[0], lambda _: self._read(name, key, files), made, write, self.absent, what)

    def _read(self, name: str, key: str, files: tuple[Path, ...]) -> Stage:
        model = load_model(files[0])
        adaptation = None
        if len(files) > 2:
            adaptation = Adaptation(load_model(files[2]), load_transforms(files[3]), self._sat_config.decoding)
        return Stage(name, model, load_alignments(model, files[1]), key, adaptation)


def log_pass(report: PassReport) -> None:
    log.info(
        "%s %d/%d: %.3f nats per frame, %s, %s%s",
        *(report.stage, report.number, report.passes, report.log_likelihood_per_frame),
        *(counted(report.gaussians, "Gaussian"), counted(report.frames, "frame")),
        f"; {left_out('utterance', sorted(report.failed.items()))}" if report.failed else "",
    )


def input_dims(front: FrontEnd, stages: HmmStages, spectrum: int) -> int:
    """Values per frame of a network's input whose spectrum, with derivatives, has `spectrum` values."""
    wanted = front.input
    dims = spectrum if wanted.spectrum else 0
    if wanted.fmllr:
        dims += 3 * front.cepstra if stages.lda is None else stages.lda.lda.dim
    return dims if wanted.ivector is None else dims + wanted.ivector.dims


def _brings_features(part: Corpus) -> bool:
    return part.utterances[0].features is not None


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
