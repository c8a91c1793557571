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
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from murmur.engine.task import Unmade
from murmur.execution.cores import cores_here
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.features.analysis import Front, LogMel, Mfcc, Ready, ReadyAtSpeed, deltas, sample_rate_hz
from murmur.speech.features.cepstral_warp import MelCepstra
from murmur.speech.features.cmvn import normalise_all
from murmur.speech.features.derivatives import all_with_derivatives
from murmur.speech.features.shards import FeatureStore, prepare
from murmur.speech.hmm.align import align, align_adapted
from murmur.speech.hmm.em_loop import PassReport, Progress, Trained
from murmur.speech.hmm.fmllr import adapt
from murmur.speech.hmm.lda_mllt import train_lda_mllt
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.monophone import train_monophone
from murmur.speech.hmm.phone_times import phone_times
from murmur.speech.hmm.sat import SatConfig, SatTrained, train_sat
from murmur.speech.hmm.speaker_transforms import AdaptedPair, FmllrConfig, Transforms
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
from murmur.speech.lexicon.lexicon import SILENCE, Lang, make_lang, read_lexicon, split_known
from murmur.tasks.adapted_gaussians import AdaptedGaussians
from murmur.tasks.corpora import SpeechSet
from murmur.tasks.hybrid.config import FrontEnd, HmmStages
from murmur.tasks.hybrid.warps import Warps
from murmur.tasks.prepared import Absent, refuse_to_make
from murmur.tasks.unprepared import features_to_make

log = logging.getLogger(__name__)
FORMAT = 1
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Adaptation:
    """Additional parts of a speaker-adapted stage.

    Attributes:
        unadapted: model of unadapted features, with the same states and Gaussians.
        transforms: transforms of the training speakers, {speaker: W (D, D + 1)}.
        decoding: settings for the estimation of transforms from a first decoding pass.
    """

    unadapted: HmmGmm
    transforms: Transforms
    decoding: FmllrConfig


@dataclass(frozen=True)
class Stage:
    """A trained Gaussian system.

    Attributes:
        name: its name.
        model: the model.
        tids: alignments of train, {utterance: transition-ids by frame}.
        key: digest of everything that made it.
        adaptation: transforms and model of unadapted features; None for a speaker-independent stage.
    """

    name: str
    model: HmmGmm
    tids: Mapping[str, np.ndarray]
    key: str
    adaptation: Adaptation | None = None

    @property
    def pair(self) -> AdaptedPair:
        """The models of adapted and of unadapted features."""
        assert self.adaptation is not None  # a speaker-independent stage has none
        return AdaptedPair(self.model, self.adaptation.unadapted)

    def silence_share(self, texts: Mapping[str, str]) -> float:
        """Silences per place that may hold one (before the first word, after each word), between 0.01 and 0.99."""
        places = sum(len(texts[name].split()) + 1 for name in self.tids)
        silences = sum(
            time.phone == SILENCE for tids_T in self.tids.values() for time in phone_times(self.model, tids_T)
        )
        return min(max(silences / places, 0.01), 0.99)


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
        transforms: function from a part of the set to the transforms of its speakers, for `front.adaptation`.
    """

    material: SpeechSet
    lexicon: Path
    front: FrontEnd
    stages: HmmStages
    cache: Path
    jobs: int = 1
    absent: Absent = "make"
    transforms: Callable[[Corpus], Transforms] | None = None

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

    def features(self, part: Corpus) -> Arrays:
        """Cepstra less their mean over the speaker, with two orders of deltas; warped if `stages.vtln` says so."""
        feats = self._unwarped(part)
        if self.warps is None:
            return feats
        return self.warps.warped(part, feats, lambda: self._unwarped(self.material.train))

    def _unwarped(self, part: Corpus) -> Arrays:
        feats = normalise_all(self.store(part, self._cepstra(part)), part.speakers, "speaker", variance=False)
        return {name: deltas(feats_TF) for name, feats_TF in feats.items()}

    @cached_property
    def warps(self) -> Warps | None:
        """Vocal tract length normalisation of the Gaussian systems; None if there is none."""
        config, front = self.stages.vtln, self._cepstra(self.material.train)
        if config is None:
            return None
        analysis = self.material.analysis
        if isinstance(front, Mfcc):
            analysis = MelCepstra(front.bins, front.low_hz, front.rate_hz / 2)
        if analysis is None:
            raise ValueError("task.hmm.vtln: this set brings features of an unknown analysis, which cannot be warped")
        key = _digest([self._key("vtln", ""), asdict(analysis)])
        train = self.material.train
        return Warps(config, analysis, self.front.cepstra, key, self.cache, self.absent, self._speech_gaussians, train)

    def _speech_gaussians(self, feats: Mapping[str, np.ndarray]) -> SpeechGaussians:
        """The Gaussians of monophones of features that are not warped."""
        assert self.stages.vtln is not None  # its normalisation asks for them
        texts = {u: text for u, text in self.material.train.texts.items() if u in feats}
        trained = train_monophone(self.lang, feats, texts, self.stages.vtln.em, self.jobs, log_pass)
        return SpeechGaussians.of(trained.model, trained.tids)

    def network_features(self, part: Corpus, speed: float = 1.0) -> Arrays:
        """Features of the network, at one playback speed.

        Raises:
            ValueError: the speed is not 1, for a set that brings features of an unknown analysis.
        """
        if self.transforms is not None:
            return self._adapted_features(part, self.transforms(part))
        store, front = self.network_store(part, speed), self.front
        return all_with_derivatives(store, part.speakers, front.cmvn, self.delta_order, front.normalised)

    def _adapted_features(self, part: Corpus, transforms: Transforms) -> Arrays:
        """Features of the last Gaussian system, adapted to the speakers; without a transform, unadapted."""
        model, speakers = self.trained[-1].model, part.speakers
        return {u: adapt(transforms.get(speakers[u]), model.features(x)) for u, x in self.features(part).items()}

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
        """Number of derivatives that the network sees: two for cepstra of the set, none for log-mel bins."""
        return 2 if _brings_features(self.material.train) else 0

    @property
    def network_dims(self) -> int:
        """Values per frame of `network_features`."""
        if self.transforms is not None:
            return 3 * self.front.cepstra if self.stages.lda is None else self.stages.lda.lda.dim
        return (self.delta_order + 1) * (self.front.cepstra if self.delta_order else self.front.bins)

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
        """The last stage as a recogniser of audio; None if it is not speaker-adapted, the set brings features, or
        features are warped."""
        stage, front = self.trained[-1], self._cepstra(self.material.train)
        if stage.adaptation is None or not isinstance(front, Mfcc) or self.warps is not None:
            return None
        return AdaptedGaussians(stage.name, front, stage.pair, stage.adaptation.decoding)

    def untrained(self) -> list[str]:
        """Systems missing from the cache, and the systems that follow them; trains and reads nothing."""
        previous = self._first
        if self.warps is not None and not self.warps.file.is_file():
            return ["vtln", *self.stages.names]
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
        cepstra = features_to_make(parts, self._cepstra(train), self.cache, "cepstra")
        if self.transforms is not None:
            return cepstra
        bins = features_to_make(parts, self.log_mel(train), self.cache, "log-mel features")
        for speed in self.front.stored.speeds:
            if speed != 1.0:
                what = f"log-mel features at speed {speed:g}"
                bins += features_to_make({"train": train}, self.log_mel(train, speed), self.cache, what)
        return cepstra + bins

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

    def _cepstra(self, part: Corpus) -> Front:
        if _brings_features(part):
            return Ready(self.front.cepstra)
        return Mfcc(rate_hz=self._rate_hz(part), cepstra=self.front.cepstra)

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
        for utterance, reason in sorted(trained.lost.items()):
            log.warning("%s: utterance %s %s", name, utterance, reason)
        return Stage(name, trained.model, trained.tids, key, adaptation)

    def _read(self, name: str, key: str, files: tuple[Path, ...]) -> Stage:
        model = load_model(files[0])
        adaptation = None
        if len(files) > 2:
            adaptation = Adaptation(load_model(files[2]), load_transforms(files[3]), self._sat_config.decoding)
        return Stage(name, model, load_alignments(model, files[1]), key, adaptation)


def stored_alignment(model: HmmGmm, path: Path, make: Callable[[], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Alignments from a file; made and written if it is missing, damaged or of another tree."""
    try:
        return load_alignments(model, path)
    except FileNotFoundError:
        log.info("alignment %s: searching", path.name)
    except ValueError as error:
        log.warning("%s", error)
    tids = dict(make())
    path.parent.mkdir(parents=True, exist_ok=True)
    save_alignments(model, tids, path)
    return tids


def log_pass(report: PassReport) -> None:
    """Log one line per pass."""
    log.info(
        "%s %d/%d: %.3f nats per frame, %d Gaussians, %d frames, %d utterances left out",
        report.stage,
        report.number,
        report.passes,
        report.log_likelihood_per_frame,
        report.gaussians,
        report.frames,
        len(report.failed),
    )


def _brings_features(part: Corpus) -> bool:
    return part.utterances[0].features is not None


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
