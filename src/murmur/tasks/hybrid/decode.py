"""From scores to error rates: a decoding graph, settings tuned on dev, then dev and test decoded and scored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from murmur.engine.task import Recognised
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.decoding.bootstrap import Interval, interval
from murmur.speech.decoding.decode_set import decode_set
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.decoding.error_report import write_error_report
from murmur.speech.decoding.graph import build_hclg
from murmur.speech.decoding.graph_build import build_graph
from murmur.speech.decoding.graph_store import ensure_graph, graph_key
from murmur.speech.decoding.tuning import DevelopmentSet, Trial, tune_acoustic_scale, tune_beam
from murmur.speech.decoding.wer import ErrorRate, score_utterances, total_of
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.language_model.arpa import read_arpa
from murmur.speech.language_model.grammar import Grammar, loop_grammar, ngram_grammar, one_word_grammar
from murmur.speech.lexicon.lexicon import Lang, read_lexicon
from murmur.tasks.corpora import SpeechSet
from murmur.tasks.hybrid.config import LOOP, ONE_WORD, TOLERANCE_PERCENT, Decoding, Search, first_options
from murmur.tasks.recognised import recognised
from murmur.tasks.vocabulary import Vocabulary

log = logging.getLogger(__name__)
FEW_SPEAKERS = 8  # with fewer, the interval resamples utterances instead of speakers
Scorer = Callable[[str], np.ndarray]


@dataclass(frozen=True)
class System:
    """A system to decode with: scores of the pdfs of `model` for utterances, and the settings of the search.

    Attributes:
        name: name in log lines and files.
        model: the transitions, tree and language behind the pdfs.
        search: grammar and settings to try.
        scores: function from a part ("dev", "test") and an utterance to (T, pdfs) natural-log likelihoods, not scaled.
    """

    name: str
    model: HmmGmm
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
    """Graphs and decoding of a set.

    Attributes:
        material: the set; its test part is never used for tuning.
        decoding: settings.
        silence_probability: probability of silence in the decoding graphs.
        cache: folder of graphs and error reports.
        jobs: number of processes.
        kept: folder where results are saved as they are made; None saves nothing.
    """

    material: SpeechSet
    decoding: Decoding
    silence_probability: float
    cache: Path
    jobs: int = 1
    kept: Path | None = None

    def evaluate(self, system: System, parts: Mapping[str, Corpus]) -> list[DecodingResult]:
        """Tune on dev, then decode the parts."""
        graph = self.graph(system.model, *self.words(system.model.lang, system.search.grammar))
        options = self.tune(system, graph, self.material.dev)
        return [self._result(system, graph, options, name, part) for name, part in parts.items()]

    def tune(self, system: System, graph: Path, dev: Corpus) -> DecodeOptions:
        """Penalty and scale with the fewest errors on dev, and the fastest beam that is as good as the widest.

        Among equal penalties the first is taken, among equal scales the middle one: on small sets many are equal, and
        the ends of such a range lie next to worse ones.
        """
        names = list(dev.texts)[:: self.decoding.tune_every]
        scores = {name: system.scores["dev"](name) for name in names}
        references = {name: dev.texts[name] for name in names}
        development = DevelopmentSet(graph, scores, references, self.jobs, kept=self.kept)
        search = system.search
        first, found = first_options(search), []
        for penalty in search.insertion_penalties:
            _, trials = tune_acoustic_scale(development, search.scales, replace(first, insertion_penalty=penalty))
            found.append(middle_of_best(trials))
            self._log_trials(system, trials)
        best = min(found, key=lambda trial: trial.rate.errors)
        if len(search.scales) > 2 and best.options.acoustic_scale in (min(search.scales), max(search.scales)):
            log.warning("%s: scale %g is at the edge of the tried range", system.name, best.options.acoustic_scale)
        if len(search.beams) > 1:
            best, trials = tune_beam(development, search.beams, best.options, TOLERANCE_PERCENT)
            self._log_trials(system, trials)
        return best.options

    def graph(self, model: HmmGmm, lang: Lang, grammar: Grammar) -> Path:
        """The folder of HCLG for a model, a vocabulary over its phones, and a grammar; built if it is missing."""
        key = graph_key(lang, grammar, model.transitions)
        folder = self.cache / f"graph-{key[:16]}"
        build = partial(build_hclg, lang, model.transitions, grammar)
        ensure_graph(folder, key, lambda: build_graph(build, grammar, self.cache))
        return folder

    def words(self, trained: Lang, grammar: str | Vocabulary) -> tuple[Lang, Grammar]:
        """The vocabulary of decoding over the phones of training, and the grammar: one of the set, or the user's.

        Raises:
            ValueError: the set has no such grammar, or words cannot be pronounced; the message says what to do.
        """
        base = read_lexicon(self.material.lexicon)
        if isinstance(grammar, Vocabulary):
            words, grammar_over = grammar.content
            lang = trained.with_lexicon(grammar.pronounced(words, base, trained.phones))
            lang = lang.with_silence_probability(self.silence_probability)
            return lang, grammar_over(lang)
        lang = trained.with_lexicon(base).with_silence_probability(self.silence_probability)
        return lang, self.grammar(lang, grammar)

    def grammar(self, lang: Lang, name: str) -> Grammar:
        """A word loop, one word, or a language model of the set by name."""
        if name == LOOP:
            return loop_grammar(lang)
        if name == ONE_WORD:
            return one_word_grammar(lang)
        if name not in self.material.language_models:
            known = ", ".join([LOOP, ONE_WORD, *self.material.language_models])
            raise ValueError(f"there is no grammar {name!r} for this set: choose one of {known}")
        return ngram_grammar(lang, read_arpa(self.material.language_models[name]))

    def _result(self, system: System, graph: Path, options: DecodeOptions, name: str, part: Corpus) -> DecodingResult:
        scores = pairs(part.texts, system.scores[name])
        decoded = decode_set(graph, scores, options, self.jobs, kept=self.kept)
        log.info("%s, %s: %s", system.name, name, decoded.summary())
        by_utterance = score_utterances(part.texts, decoded.texts)
        speakers = part.speakers if len(set(part.speakers.values())) >= FEW_SPEAKERS else None
        report = self.cache / "errors" / f"{system.name}-{name}.txt".replace(" ", "-")
        report.parent.mkdir(parents=True, exist_ok=True)
        write_error_report(report, part.texts, decoded.texts)
        spread = interval(by_utterance, speakers)
        total = total_of(by_utterance.values())
        found = recognised(part.texts, decoded.texts, part.speakers)
        return DecodingResult(system.name, name, total, spread, options, decoded.real_time_factor(), found)

    def _log_trials(self, system: System, trials: Iterable[Trial]) -> None:
        for trial in trials:
            log.info("%s, dev: %s", system.name, trial)


def middle_of_best(trials: Sequence[Trial]) -> Trial:
    """The middle one of the trials with the fewest errors."""
    fewest = min(trial.rate.errors for trial in trials)
    alike = [trial for trial in trials if trial.rate.errors == fewest]
    return alike[len(alike) // 2]


def pairs(names: Iterable[str], scores: Scorer) -> Iterator[tuple[str, np.ndarray]]:
    """Pairs (utterance, its scores), computed as they are requested."""
    for name in names:
        yield name, scores(name)
