"""From scores to error rates: settings tuned on dev, then dev and test decoded and scored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from murmur.engine.task import REPORTS, Recognised
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.decoding.bootstrap import Interval, interval
from murmur.speech.decoding.decode_set import Decoded
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.decoding.error_report import write_error_report
from murmur.speech.decoding.wer import ErrorRate, score_utterances, total_of
from murmur.tasks.corpora import SpeechSet
from murmur.tasks.hybrid.config import Search
from murmur.tasks.recognised import recognised
from murmur.tasks.word_search import WordSearch

log = logging.getLogger(__name__)
FEW_SPEAKERS = 8  # with fewer, the interval resamples utterances instead of speakers
Scorer = Callable[[str], np.ndarray]


@dataclass(frozen=True)
class System:
    """A system to decode with.

    Attributes:
        name: name in log lines and files.
        words: graph of the system's states and its grammar.
        search: settings to try.
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
        spread = f"{100 * self.interval.coverage:.0f} % interval {self.interval.low:.2f}-{self.interval.high:.2f}"
        search = f"scale {self.options.acoustic_scale:g}, beam {self.options.beam:g}/{self.options.max_active}"
        if self.options.insertion_penalty:
            search += f", insertion penalty {self.options.insertion_penalty:g}"
        return (
            f"{self.rate} {self.system}, {self.part}; {spread}; {search}, real-time factor {self.real_time_factor:.3f}"
        )

    @property
    def figures(self) -> dict[str, float]:
        """The numbers by name, such as "network test wer"."""
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
        tune_every: tuning uses every n-th dev utterance.
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
        decoded = system.words.decode(pairs(part.texts, system.scores[name]), options, self.kept)
        log.info("%s, %s: %s", system.name, name, decoded.summary(system.words.frames_per_second))
        return decoded

    def result(
        self, system: System, options: DecodeOptions, name: str, part: Corpus, decoded: Decoded
    ) -> DecodingResult:
        """Score the hypotheses of a part and write its error report, if that can be written."""
        by_utterance = score_utterances(part.texts, decoded.texts)
        speakers = part.speakers if len(set(part.speakers.values())) >= FEW_SPEAKERS else None
        report = self.reports / f"{system.name}-{name}.txt".replace(" ", "-")
        try:
            report.parent.mkdir(parents=True, exist_ok=True)
            write_error_report(report, part.texts, decoded.texts)
        except OSError as error:  # a read-only cache, after hours of training
            log.warning("%s is not written: %s", report, error)
        spread = interval(by_utterance, speakers)
        total = total_of(by_utterance.values())
        found = recognised(part.texts, decoded.texts, part.speakers)
        speed = decoded.real_time_factor(system.words.frames_per_second)
        return DecodingResult(system.name, name, total, spread, options, speed, found)


def pairs(names: Iterable[str], scores: Scorer) -> Iterator[tuple[str, np.ndarray]]:
    """Pairs (utterance, its scores), computed as they are requested."""
    for name in names:
        yield name, scores(name)
