"""Settings and parts of all tasks that train on speech and recognise it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from murmur.engine.task import Recognised, Score, Unmade
from murmur.execution.executors import HERE, Engine
from murmur.report.error_rate import Interval, interval
from murmur.speech.corpus.corpus import Corpus
from murmur.speech.corpus.digits import Digits, digits_folder, make_digits
from murmur.speech.decoding.wer import ErrorRate, score_utterances
from murmur.speech.features.analysis import Front
from murmur.speech.tasks.prepared import Absent, digits_to_make, features_of, features_to_make, refuse_to_make
from murmur.speech.tasks.pronouncing import Guess
from murmur.speech.tasks.recogniser import Recognises

FEW_SPEAKERS = 8  # with fewer, the interval resamples utterances instead of speakers


def recognised(
    references: Mapping[str, str], hypotheses: Mapping[str, str], speakers: Mapping[str, str]
) -> tuple[Recognised, ...]:
    """All utterances, sorted by name, with their word errors."""
    return tuple(
        Recognised(name, speakers[name], references[name], hypotheses[name], rate.errors, rate.tokens)
        for name, rate in score_utterances(references, hypotheses).items()
    )


def spread(rates: Mapping[str, ErrorRate], speakers: Mapping[str, str]) -> Interval:
    """The 95 % bootstrap interval of the error rate of all utterances."""
    return interval(rates, speakers if len(set(speakers.values())) >= FEW_SPEAKERS else None)


@dataclass(frozen=True)
class SpeechTask(Recognises):
    """A corpus, and what is made of it once.

    Attributes:
        corpus: folder of the set; None synthesises the digits corpus with espeak-ng.
        guess: source of pronunciations for words of train that the lexicon lacks: espeak (espeak-ng, in CMUdict's
            phones), graphemes, or none, which leaves such utterances out.
        digits: size of the synthetic corpus.
        seed: seed of the order of the data and of the augmentation.
        jobs: number of processes for alignment and decoding; preparation uses one per core.
        executor: workers for preparation, alignment and decoding: processes, dask:ADDRESS, dask:slurm or mpi.
        cache: folder for everything that is made once.
        absent: "make" to make training data that is missing from the cache, "refuse" to end with an error.
    """

    corpus: Path | None = None
    guess: Guess = "none"
    digits: Digits = field(default_factory=Digits)
    seed: int = 0
    jobs: int = 1
    cache: Path = Path("runs/cache")
    absent: Absent = field(default="make", repr=False)
    executor: str = field(default=HERE, repr=False)

    def __getstate__(self) -> dict[str, object]:
        """The fields alone: loaded data stays out of pickles, and every process reads its own."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def work(self) -> Engine:
        """The workers of alignment and decoding."""
        return Engine(self.executor, self.jobs, Path(self.cache), progress=True)

    @cached_property
    def root(self) -> Path:
        """The corpus folder; the digits are synthesised on first use."""
        if self.corpus is not None:
            return Path(self.corpus)
        if self.absent == "refuse" and self.lacks_digits:
            refuse_to_make("the synthetic corpus", self.cache)
        return make_digits(self.cache, self.digits)

    @property
    def lacks_digits(self) -> bool:
        """True if the digits corpus is wanted and not synthesised yet."""
        return self.corpus is None and not digits_folder(self.cache, self.digits).is_dir()

    def unmade_features(self, parts: tuple[str, ...], bins: int, front: Callable[[Corpus], Front]) -> list[Unmade]:
        """Digits, and features of these parts, that are not in the cache; `front` gives the analysis of train."""
        if self.lacks_digits:
            spoken, hours = digits_to_make(self.cache, self.digits)
            return [spoken, *features_of({part: hours[part] for part in parts}, bins, self.cache, "log-mel features")]
        corpora = {part: self.utterances(part) for part in parts}
        return features_to_make(corpora, front(corpora["train"]), self.cache, "features")

    @abstractmethod
    def piece(self, n: int, number: int, of: int) -> Any:
        """Some utterances or chunks of minibatch n, with masks of their own; None if there are none."""

    def minibatch(self, n: int) -> Any:
        """Minibatch n with its masks: a pure function of the task's fields and n."""
        return self.piece(n, 0, 1)

    @abstractmethod
    def test_in(self, model: nn.Module, kept: Path | None) -> Score:
        """`test`, with the decoding results saved in a folder and not decoded again."""

    def test(self, model: nn.Module) -> Score:
        """Error rates on test, with the settings of decoding tuned on dev."""
        return self.test_in(model, None)
