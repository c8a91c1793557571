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
from murmur.execution.cores import cores_here
from murmur.speech.corpus.corpus import Corpus, CorpusError
from murmur.speech.corpus.left_out import left_out
from murmur.speech.features.analysis import Front, LogMel, Mfcc, Ready, ReadyAtSpeed, digest, sample_rate_hz
from murmur.speech.features.cepstral_warp import MelCepstra
from murmur.speech.features.derivatives import all_with_derivatives
from murmur.speech.features.readable import check_readable
from murmur.speech.features.shards import FeatureStore, prepare
from murmur.speech.hmm.align import align, align_adapted
from murmur.speech.hmm.em_loop import PassReport, Progress, Trained
from murmur.speech.hmm.lda_mllt import train_lda_mllt
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.monophone import train_monophone
from murmur.speech.hmm.sat import SatConfig, SatTrained, train_sat
from murmur.speech.hmm.speaker_transforms import Transforms
from murmur.speech.hmm.storage import (
    load_alignments,
    load_model,
    load_transforms,
    save_alignments,
    save_model,
    save_transforms,
)
from murmur.speech.hmm.triphone import train_triphone
from murmur.speech.hmm.vtln import SpeechGaussians
from murmur.speech.ivector.extraction import ivectors
from murmur.speech.ivector.extractor import Extractor
from murmur.speech.lexicon.lexicon import Lang, make_lang, read_lexicon, split_known
from murmur.tasks.adapted_gaussians import AdaptedGaussians
from murmur.tasks.corpora import SpeechSet
from murmur.tasks.hybrid.config import FrontEnd, HmmStages
from murmur.tasks.hybrid.ivector_stage import IvectorStage
from murmur.tasks.hybrid.stage import Adaptation, Stage, stored_alignment
from murmur.tasks.hybrid.warps import Warps
from murmur.tasks.prepared import Absent, refuse_to_make
from murmur.tasks.speaker_columns import GaussianFeatures, SpeakerColumns, joined
from murmur.tasks.unprepared import features_to_make

log = logging.getLogger(__name__)
FORMAT = 1
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class HmmHalf:
    """Features and Gaussian systems of a set.

    Attributes:
        material: the set.
        lexicon: pronunciations for the transcripts; decoding may use a larger lexicon over the same phones.
        front: features of the systems.
        stages: systems to train.
        cache: folder of all stored results.
        jobs: number of aligning processes; features are made with one process per core.
        absent: "make" to train a Gaussian system that is missing from the cache, "refuse" to end with an error.
        transforms: function from a part of the set and a speed to the transforms of its speakers, for an input with
            adapted features; None for others.
    """

    material: SpeechSet
    lexicon: Path
    front: FrontEnd
    stages: HmmStages
    cache: Path
    jobs: int = 1
    absent: Absent = "make"
    transforms: Callable[[Corpus, float], Transforms] | None = None

    @cached_property
    def lang(self) -> Lang:
        """Phones and words of the transcripts."""
        return make_lang(read_lexicon(self.lexicon), silence_probability=self.stages.silence_probability)

    @cached_property
    def train_feats(self) -> Arrays:
        """Features of train for the Gaussian systems, {utterance: (T, 3 cepstra)}."""
        return self.features(self.material.train)

    @cached_property
    def train_texts(self) -> dict[str, str]:
        """Transcripts of the train utterances that have features."""
        return {u: text for u, text in self.material.train.texts.items() if u in self.train_feats}

    def features(self, part: Corpus, speed: float = 1.0) -> Arrays:
        """Cepstra less their mean over the speaker, with two orders of deltas, at one playback speed; warped if
        `stages.vtln` says so."""
        return dict(self._warped(part, self._unwarped(part, speed), speed))

    def _unwarped(self, part: Corpus, speed: float = 1.0) -> GaussianFeatures:
        """The same without warps, computed as they are taken."""
        return GaussianFeatures.of(self.store(part, self._cepstra(part, speed)), part.speakers)

    def _warped(self, part: Corpus, feats: GaussianFeatures, speed: float) -> GaussianFeatures:
        return feats if self.warps is None else self.warps.warped(part, feats, speed)

    @cached_property
    def warps(self) -> Warps | None:
        """Vocal tract length normalisation of the Gaussian systems; None if there is none.

        Raises:
            ValueError: the analysis of the set's features is unknown.
        """
        config, front, train = self.stages.vtln, self.cepstra, self.material.train
        if config is None:
            return None
        analysis = self.material.analysis
        if isinstance(front, Mfcc):
            analysis = MelCepstra(front.bins, front.low_hz, front.rate_hz / 2)
        if analysis is None:
            raise ValueError("task.hmm.vtln: this set brings features of an unknown analysis, which cannot be warped")
        key, made_by = _digest([self._key("vtln", ""), asdict(analysis)]), self._speech_gaussians
        return Warps(
            config, analysis, front.dims, key, self.cache, self.absent, made_by, train, lambda: self._unwarped(train)
        )

    def _speech_gaussians(self, feats: Arrays) -> SpeechGaussians:
        """The Gaussians of monophones of features that are not warped."""
        assert self.stages.vtln is not None  # its normalisation asks for them
        texts = {u: text for u, text in self.material.train.texts.items() if u in feats}
        trained = train_monophone(self.lang, feats, texts, self.stages.vtln.em, self.jobs, log_pass)
        return SpeechGaussians.of(trained.model, trained.tids)

    def network_features(self, part: Corpus, speed: float = 1.0) -> Arrays:
        """Input of the network, at one playback speed.

        Raises:
            ValueError: the speed is not 1, for a set that brings features of an unknown analysis.
        """
        columns = self.speaker_columns(part, speed)
        if not self.front.input.spectrum:
            assert columns is not None  # an input has one or the other
            return {name: joined(name, None, columns) for name in columns.feats}
        store, front = self.network_store(part, speed), self.front
        normal = all_with_derivatives(store, part.speakers, front.cmvn, self.delta_order, front.normalised)
        if columns is None:
            return normal
        return {name: joined(name, feats_TF, columns) for name, feats_TF in normal.items() if name in columns}

    def speaker_columns(self, part: Corpus, speed: float = 1.0) -> SpeakerColumns | None:
        """The parts of the network's input that depend on the speaker; None for an input without.

        Speech at another speed is taken for that of other speakers. In train, i-vectors are those of a few utterances
        of a speaker, see `IvectorConfig.utterances`; elsewhere of all. Their features are not warped, since they
        describe the speaker.
        """
        wanted = self.front.input
        if not wanted.of_speakers:
            return None
        feats, speakers = self._unwarped(part, speed), part.speakers
        columns = SpeakerColumns(feats, speakers)
        if self.transforms is not None:
            transforms, projection = self.transforms(part, speed), self.trained[-1].model.projection
            columns = SpeakerColumns(self._warped(part, feats, speed), speakers, transforms, projection)
        if wanted.ivector is not None:
            few = wanted.ivector.utterances if part is self.material.train else 0
            found = ivectors(self.extractor, feats, speakers, wanted.ivector.scale, few)
            columns = replace(columns, ivectors=found)
        return columns

    @property
    def ivector_stage(self) -> IvectorStage | None:
        """Training of the extractor of i-vectors; None for an input without."""
        config, train = self.front.input.ivector, self.material.train
        if config is None:
            return None
        front = digest(self.cepstra)
        return IvectorStage(config, f"{train.digest()} {front}", self.cache, self.absent)

    @cached_property
    def extractor(self) -> Extractor:
        """The extractor of i-vectors, trained on train if it is not stored yet."""
        stage = self.ivector_stage
        assert stage is not None  # the input has an i-vector
        train = self.material.train
        return stage.extractor(
            lambda: self.train_feats if self.warps is None else self._unwarped(train), train.speakers
        )

    def network_store(self, part: Corpus, speed: float = 1.0) -> FeatureStore:
        """The source of `network_features`, without normalisation and without derivatives.

        Raises:
            ValueError: the speed is not 1, for a set that brings features of an unknown analysis.
        """
        if _brings_features(part):
            return self.store(part, self.brought(speed))
        return self.store(part, self.log_mel(part, speed))

    def network_front(self, part: Corpus) -> LogMel | Ready:
        """The network's analysis of audio, or the features that a part brings."""
        return Ready(self.front.cepstra) if _brings_features(part) else self.log_mel(part)

    def brought(self, speed: float = 1.0) -> Ready | ReadyAtSpeed:
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
        """The network's analysis of audio."""
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
        """Values per frame of `network_features`."""
        return input_dims(self.front, self.stages, (self.delta_order + 1) * self.spectrum_dims)

    @property
    def ivector_dims(self) -> int:
        """Values of the i-vector in the network's input."""
        return 0 if self.front.input.ivector is None else self.front.input.ivector.dims

    def store(self, part: Corpus, front: Front) -> FeatureStore:
        """Features on disk, made if they are missing."""
        return prepare(part, front, self.cache, cores_here(), progress=True)

    @cached_property
    def trained(self) -> tuple[Stage, ...]:
        """All stages, the last one best; trained if they are not stored yet.

        Raises:
            ValueError: more than 1 % of the utterances cannot be used; the message names them and gives the reasons.
        """
        done = [self._stage("monophone", self._first, self._monophone)]
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
        vtln = None if self.warps is None else self.warps.trained
        return AdaptedGaussians(stage.name, front, stage.pair, stage.adaptation.decoding, vtln)

    def untrained(self) -> list[str]:
        """Systems missing from the cache, and the systems that follow them; trains and reads nothing."""
        previous = self._first
        if self.warps is not None and not self.warps.file.is_file():
            return self.stages.to_train
        for place, name in enumerate(self.stages.names):
            previous = self._key(name, previous)
            if not all(path.is_file() for path in self._files(name, previous)):
                return self.stages.names[place:]
        return []

    @property
    def _first(self) -> str:
        """The key that the first stage follows."""
        return "" if self.warps is None else self.warps.key

    def features_to_make(self, parts: Mapping[str, Corpus]) -> list[Unmade]:
        """Cepstra and network features of these parts that are missing from the cache."""
        train = parts["train"]
        if _brings_features(train):
            found = features_to_make(parts, Ready(self.front.cepstra), self.cache, "features")
            for speed in self.front.stored.speeds:
                if speed != 1.0:
                    what = f"features at speed {speed:g}"
                    found += features_to_make({"train": train}, self.brought(speed), self.cache, what)
            return found
        wanted = self.front.input
        cepstra = features_to_make(parts, self.cepstra, self.cache, "cepstra")
        bins = features_to_make(parts, self.log_mel(train), self.cache, "log-mel features") if wanted.spectrum else []
        for speed in self.front.stored.speeds:
            if speed == 1.0:
                continue
            if wanted.spectrum:
                what = f"log-mel features at speed {speed:g}"
                bins += features_to_make({"train": train}, self.log_mel(train, speed), self.cache, what)
            if wanted.of_speakers:
                own = self._cepstra(train, speed)
                cepstra += features_to_make({"train": train}, own, self.cache, f"cepstra at speed {speed:g}")
        return cepstra + bins

    def check_test(self) -> None:
        """Check the recordings of test, which are read after training.

        Raises:
            CorpusError: more than 1 % of the utterances cannot be used; names the first ones.
        """
        test = self.material.test
        if _brings_features(test):
            return
        try:
            check_readable(test, self._rate_hz(test))
        except CorpusError as error:
            raise CorpusError(f"test: {error}") from error

    def alignment(self, stage: Stage, part: Corpus) -> dict[str, np.ndarray]:
        """Alignments of another part by a stage, stored like its own."""
        key = _digest([stage.key, part.digest()])
        texts = split_known(self.lang, part.texts).texts

        def make() -> Mapping[str, np.ndarray]:
            every = self.features(part)
            feats = {u: every[u] for u in texts}
            if stage.adaptation is None:
                return align(stage.model, feats, texts, jobs=self.jobs).tids
            settings = self._sat_config.fmllr
            return align_adapted(stage.pair, feats, texts, part.speakers, settings, jobs=self.jobs).tids

        return stored_alignment(stage.model, self.cache / f"{stage.name}-{key}-alignment.npz", make)

    def _monophone(self) -> Trained:
        return train_monophone(
            self.lang, self.train_feats, self.train_texts, self.stages.monophone, self.jobs, log_pass
        )

    @property
    def _sat_config(self) -> SatConfig:
        assert self.stages.sat is not None  # the stage exists
        return self.stages.sat

    def _sat(
        self, previous: HmmGmm, feats: Arrays, texts: dict[str, str], config: SatConfig, jobs: int, progress: Progress
    ) -> Trained:
        return train_sat(previous, feats, texts, self.material.train.speakers, config, jobs, progress)

    @property
    def cepstra(self) -> Mfcc | Ready:
        """Analysis of the Gaussian systems, or the features that train brings."""
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
        try:
            return self._read(name, key, files)
        except (FileNotFoundError, ValueError) as error:
            if self.absent == "refuse":
                refuse_to_make(f"the Gaussian system {files[0].name} of the run's alignment ({error})", self.cache)
            if isinstance(error, FileNotFoundError):
                log.info("%s: training", name)
            else:
                log.warning("%s", error)
        trained = make()
        self.cache.mkdir(parents=True, exist_ok=True)
        adaptation = None
        if isinstance(trained, SatTrained):
            save_model(trained.unadapted, files[2])
            save_transforms(trained.transforms, files[3])
            adaptation = Adaptation(trained.unadapted, trained.transforms, self._sat_config.decoding)
        save_alignments(trained.model, trained.tids, files[1])
        save_model(trained.model, files[0])
        if trained.lost:
            log.warning("%s: %s", name, left_out("utterance", sorted(trained.lost.items())))
        return Stage(name, trained.model, trained.tids, key, adaptation)

    def _read(self, name: str, key: str, files: tuple[Path, ...]) -> Stage:
        model = load_model(files[0])
        adaptation = None
        if len(files) > 2:
            adaptation = Adaptation(load_model(files[2]), load_transforms(files[3]), self._sat_config.decoding)
        return Stage(name, model, load_alignments(model, files[1]), key, adaptation)


def log_pass(report: PassReport) -> None:
    """Log one line per pass."""
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
