"""From scores to error rates: settings tuned on dev, then dev and test decoded and scored; decoding in two passes."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from murmur.core.counted import counted
from murmur.engine.task import REPORTS, Recognised
from murmur.execution.executors import Jobs
from murmur.report.error_rate import Interval
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.decoding.decode_set import Decoded
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.decoding.wer import ErrorRate, score_utterances, total_of, write_error_report
from murmur.speech.hmm.fmllr import Transforms, transforms_from_paths
from murmur.speech.hmm.storage import load_transforms, save_transforms
from murmur.speech.tasks.corpora import SpeechSet
from murmur.speech.tasks.graph_sources import Search
from murmur.speech.tasks.hybrid.stage import Stage
from murmur.speech.tasks.prepared import Absent, read_or_make, store
from murmur.speech.tasks.speaker_inputs import FIRST_BEAM, FIRST_STATES, FirstPass, narrow
from murmur.speech.tasks.speech_task import recognised, spread
from murmur.speech.tasks.word_search import WordSearch

log = logging.getLogger(__name__)
Scorer = Callable[[str], np.ndarray]
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class System:
    """A system to decode with.

    Attributes:
        scores: function from a part ("dev", "test") and an utterance to (T, pdfs) natural-log likelihoods, not scaled.
    """

    name: str
    words: WordSearch
    search: Search
    scores: Mapping[str, Scorer]


@dataclass(frozen=True)
class DecodingResult:
    """Error rate of a system on a part, with its bootstrap interval, decoding options and speed."""

    system: str
    part: str
    rate: ErrorRate
    interval: Interval
    options: DecodeOptions
    real_time_factor: float
    recognised: tuple[Recognised, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        ends = f"{100 * self.interval.coverage:.0f} % interval {self.interval.low:.2f}-{self.interval.high:.2f}"
        search = f"scale {self.options.acoustic_scale:g}, beam {self.options.beam:g}/{self.options.max_active}"
        if self.options.insertion_penalty:
            search += f", insertion penalty {self.options.insertion_penalty:g}"
        return f"{self.rate} {self.system}, {self.part}; {ends}; {search}, real-time factor {self.real_time_factor:.3f}"

    @property
    def figures(self) -> dict[str, float]:
        name = f"{self.system} {self.part}"
        return {
            f"{name} wer": self.rate.percent,
            f"{name} errors": float(self.rate.errors),
            f"{name} words": float(self.rate.tokens),
            f"{name} low": self.interval.low,
            f"{name} high": self.interval.high,
            f"{name} acoustic scale": self.options.acoustic_scale,
            f"{name} insertion penalty": self.options.insertion_penalty,
            f"{name} beam": self.options.beam,
            f"{name} max active": float(self.options.max_active),
            f"{name} real-time factor": self.real_time_factor,
        }


@dataclass(frozen=True)
class DecodeHalf:
    """Decoding and scoring of a set.

    Attributes:
        material: the set; its test part is never used for tuning.
        cache: folder of prepared data; error reports of tests that save nothing go there, see `reports`.
        kept: folder where results are saved as they are made; None saves nothing.
    """

    material: SpeechSet
    tune_every: int
    cache: Path
    kept: Path | None = None

    @property
    def reports(self) -> Path:
        """Folder of error reports, that of one run if there is one."""
        return (self.cache if self.kept is None else self.kept) / REPORTS

    def evaluate(self, system: System, parts: Mapping[str, Corpus]) -> list[DecodingResult]:
        """Tune on dev, then decode the parts."""
        options = self.tune(system, self.material.dev)
        return [
            self.result(system, options, name, part, self.decode(system, options, name, part))
            for name, part in parts.items()
        ]

    def tune(self, system: System, dev: Corpus) -> DecodeOptions:
        """Settings with the fewest errors on dev, see `WordSearch.tune`."""
        names = list(dev.texts)[:: self.tune_every]
        scores = {name: system.scores["dev"](name) for name in names}
        return system.words.tune(
            system.search, scores, {name: dev.texts[name] for name in names}, self.kept, system.name
        )

    def decode(self, system: System, options: DecodeOptions, name: str, part: Corpus) -> Decoded:
        """Decode the utterances of a part; `name` is its name."""
        scores = ((utterance, system.scores[name](utterance)) for utterance in part.texts)
        decoded = system.words.decode(scores, options, self.kept)
        log.info("%s, %s: %s", system.name, name, decoded.summary(system.words.frames_per_second))
        return decoded

    def result(
        self, system: System, options: DecodeOptions, name: str, part: Corpus, decoded: Decoded
    ) -> DecodingResult:
        """Score the hypotheses of a part and write its error report, if that can be written."""
        by_utterance = score_utterances(part.texts, decoded.texts)
        report = self.reports / f"{system.name}-{name}.txt".replace(" ", "-")
        try:
            report.parent.mkdir(parents=True, exist_ok=True)
            write_error_report(report, part.texts, decoded.texts)
        except OSError as error:  # a read-only cache, after hours of training
            log.warning("%s is not written: %s", report, error)
        range_of = spread(by_utterance, part.speakers)
        total = total_of(by_utterance.values())
        found = recognised(part.texts, decoded.texts, part.speakers)
        speed = decoded.real_time_factor(system.words.frames_per_second)
        return DecodingResult(system.name, name, total, range_of, options, speed, found)


@dataclass(frozen=True)
class TwoPass:
    """Decoding with a speaker-adapted Gaussian system in two passes.

    The first pass uses the model of unadapted features. Its best paths give a transform for each speaker, estimated
    twice on the same paths; the second pass decodes adapted features. Transcripts are used for tuning and scoring
    alone. Povey and Saon (2006). Kaldi estimates once more from the second pass, and rescores its lattices. On dev this
    made no difference: 44 errors in place of 45 in 694 words of AN4, 216 in place of 214 in 952 words of LibriSpeech.

    Attributes:
        feats: function from the name of a part to the features of its utterances, neither projected nor adapted; it is
            called for the parts in use.
    """

    stage: Stage
    words: WordSearch
    search: Search
    feats: Callable[[str], Arrays]
    decoder: DecodeHalf
    jobs: Jobs = 1
    absent: Absent = "make"

    def results(self, parts: Mapping[str, Corpus]) -> list[DecodingResult]:
        """Error rates of the first pass ("NAME unadapted") and of the second ("NAME") on each part.

        Both are tuned on dev, whose utterances are decoded in any case. The decoding that gives the transforms searches
        more narrowly than the one that is scored.
        """
        name, half, first = self.stage.name, self.decoder, self._unadapted
        options = half.tune(first, half.material.dev)
        settings, path = FirstPass(self._grammar, narrow(options)), self._first_pass_file
        store(path, partial(settings.write, path))
        results = []
        for part, corpus in parts.items():
            results.append(half.result(first, options, part, corpus, half.decode(first, options, part, corpus)))
        every = {"dev": half.material.dev, **parts}
        transforms = {part: self._estimated(part, corpus) for part, corpus in every.items()}
        for part, found in transforms.items():
            path = self.transforms_file(every[part])
            store(path, partial(save_transforms, found, path))
        second = System(name, self.words, self.search, self._scorers(transforms))
        options = half.tune(second, half.material.dev)
        for part, corpus in parts.items():
            results.append(half.result(second, options, part, corpus, half.decode(second, options, part, corpus)))
        return results

    def transforms(self, part: str, corpus: Corpus) -> Transforms:
        """The transforms of a part, from their file; decodes the part if it is missing or damaged."""
        path, make = self.transforms_file(corpus), partial(self._estimated, part, corpus)
        what = f"the transforms of the speakers of {part}"
        return read_or_make(path, load_transforms, make, save_transforms, self.absent, what)

    @property
    def first_pass(self) -> FirstPass:
        """Settings of the first pass, from their file; tunes them on dev if it is missing or damaged."""

        def tuned() -> FirstPass:
            return FirstPass(self._grammar, narrow(self.decoder.tune(self._unadapted, self.decoder.material.dev)))

        write, what = FirstPass.write, "the settings of the first pass"
        return read_or_make(self._first_pass_file, FirstPass.read, tuned, write, self.absent, what)

    def transforms_file(self, corpus: Corpus) -> Path:
        """File of the transforms of a corpus, beside the model; named by all that made them."""
        return self._file("transforms", corpus.digest(), ".npz")

    @property
    def _first_pass_file(self) -> Path:
        return self._file("first-pass", self._grammar, ".json")

    @property
    def _grammar(self) -> str:
        assert isinstance(self.words.grammar, str)  # the task names it
        return self.words.grammar

    def _file(self, kind: str, of: str, end: str) -> Path:
        half, graph = self.decoder, self.words.sources.key(*self.words.words)
        tuned = [half.material.dev.digest(), half.tune_every, asdict(self.search), FIRST_BEAM, FIRST_STATES]
        content = json.dumps([self.stage.key, of, graph, tuned], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        return half.cache / f"{self.stage.name}-{self.stage.key}-{kind}-{digest}{end}"

    @property
    def _unadapted(self) -> System:
        return System(f"{self.stage.name} unadapted", self.words, self.search, self._scorers({}))

    def _estimated(self, part: str, corpus: Corpus) -> Transforms:
        """The transforms of the speakers of a part, from the paths of a first pass."""
        adaptation = self.stage.adaptation
        assert adaptation is not None  # two passes are for adapted systems
        decoded = self.decoder.decode(self._unadapted, self.first_pass.options, part, corpus)
        paths = {u: hypothesis.labels for u, hypothesis in decoded.hypotheses.items()}
        pair, feats, speakers = self.stage.pair, self.feats(part), corpus.speakers
        found = transforms_from_paths(pair, feats, paths, speakers, adaptation.decoding, self.jobs)
        log.info("%s, %s: transforms of %s", self.stage.name, part, counted(len(found), "speaker"))
        return found

    def _scorers(self, transforms: Mapping[str, Transforms]) -> dict[str, Scorer]:
        return {part: partial(self._scores, part, transforms.get(part, {})) for part in ("train", "dev", "test")}

    def _scores(self, part: str, transforms: Transforms, name: str) -> np.ndarray:
        speaker = getattr(self.decoder.material, part).speakers[name]
        return self.stage.pair.loglikes(self.feats(part)[name], transforms.get(speaker))
