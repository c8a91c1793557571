"""Rescoring of a trained run's results with an LSTM language model that another run has trained.

The weight of the LSTM is given, or tuned on development data by the word error rate and kept in `rescoring.json` of the
run that recognises, under the digests of the language model's weights and the decoding graph. Where acoustic models,
scales or length of the lists differ from those of the tuning, a warning says so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from murmur.core.counted import are, counted, named
from murmur.core.errors import SettingError
from murmur.core.path_checks import folder_to_write
from murmur.core.whole_files import write_whole
from murmur.run.folder.contents import DESCRIPTION, RESCORING
from murmur.run.saved_model import model_to_read, read_into
from murmur.run.timed import timed
from murmur.speech.decoding.decode_set import Decoded
from murmur.speech.decoding.decoder import DecodeOptions
from murmur.speech.decoding.rescoring import LstmScores, NgramScores, Scored, scored
from murmur.speech.decoding.wer import score
from murmur.speech.features.shards import sha256_of
from murmur.speech.language_model.grammar import searched_words
from murmur.speech.language_model.ngram import NgramModel
from murmur.speech.language_model.word_lstm import LstmLanguageModel, WordNumbers
from murmur.speech.recognition.run_records import recorded
from murmur.speech.recognition.trained_run import TrainedRun
from murmur.speech.recognition.tuning import TUNED, MeanScores, SearchRequest
from murmur.speech.tasks.language_model import PortableLanguageModel
from murmur.speech.tasks.word_search import WordSearch

log = logging.getLogger(__name__)
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # tried on development data
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Rescoring:
    """Rescoring by an LSTM language model, as the options of a command line name it.

    Attributes:
        rescore: Run of an LSTM language model (murmur train lm), which chooses among the best hypotheses.
        lm_weight: Weight of the LSTM in its mixture with the n-gram model; by default as tuned by --dev, which tunes
            nothing else if --scale or --penalty is given.
        nbest: Hypotheses of each utterance to rescore.
    """

    panel: ClassVar[str] = "Rescoring (docs/language_models.md)"
    rescore: Annotated[Path | None, typer.Option(metavar="RUN")] = None
    lm_weight: Annotated[float | None, typer.Option(min=0.0, max=1.0)] = None
    nbest: Annotated[int, typer.Option(min=2)] = 100

    @property
    def model(self) -> Path:
        """File of the language model's weights, without suffix, after a check that its files are there.

        Raises:
            SettingError: there is no such run, or it is not a language model's.
        """
        assert self.rescore is not None
        stem = model_to_read(self.rescore)
        if not (stem.parent / DESCRIPTION).is_dir():
            raise SettingError(
                f"--rescore {self.rescore}: {stem.parent} has no {DESCRIPTION}/, so it is no finished run of a language"
                " model: train one, such as murmur train librispeech_lm"
            )
        return stem

    def changed(self, search: SearchRequest) -> SearchRequest:
        """The request of a search with rescoring: if scale or word cost is given, `dev` tunes the weight alone.

        Raises:
            SettingError: there is no such model, options need it, or nothing is left to tune.
        """
        if self.rescore is None:
            if self != Rescoring():
                raise SettingError(f"{'--nbest' if self.lm_weight is None else '--lm-weight'} is for --rescore RUN")
            return search
        _ = self.model
        if search.dev is None or not set(TUNED) & set(search.changes):
            return search
        if self.lm_weight is not None:
            raise SettingError("--dev has nothing to tune: leave --lm-weight, or --scale and --penalty, out")
        return replace(search, tunes="weight")


@dataclass(frozen=True, eq=False)
class Rescorer:
    """Language models of the search and of the rescoring."""

    wish: Rescoring
    key: str  # digests of the LSTM's weights and of the decoding graph; the tuned weight is kept under it
    acoustic: tuple[str, ...]  # digests of the acoustic models' weights
    ngram: NgramScores  # of the search
    lstm: LstmScores
    weight: float | None  # None before tuning
    tuned_with: Mapping[str, Any]  # the search of the tuning, for a weight tuned before; else empty

    @property
    def facts(self) -> dict[str, Any]:
        """Settings of the rescoring in JSON's terms."""
        told = {"language_model": str(self.wish.rescore), "weight": self.weight, "listed": self.wish.nbest}
        return {"rescoring": {**told, "words_unknown_to_the_model": len(self.lstm.unseen)}}

    def tuned(
        self,
        run: TrainedRun,
        models: MeanScores,
        search: WordSearch,
        options: DecodeOptions,
        dev: str | None,
        scratch: Path,
    ) -> tuple[DecodeOptions, Rescorer]:
        """Search settings that list hypotheses, and the rescorer with its weight; `models` give the scores.

        A weight that is not given is tuned on `dev`, and kept in the run's folder. Features and lists of dev are stored
        in `scratch`, where a later call finds them.
        """
        listing = replace(options, listed=self.wish.nbest)
        searched = self._described(listing)
        if self.weight is not None or dev is None:
            self._warn_of_changes(searched)
            return listing, self
        corpus, every = run.corpus(dev), run.graphs.tune_every
        with timed(f"trying weights of the language model on {dev}"):
            found = search.decode(models.of_some(corpus, scratch, every), listing, scratch)
            weight, errors = best_weight(self.scored(found), {name: corpus.texts[name] for name in found.lists})
        told = {"weight": weight, "dev": dev, "errors": errors, "model": str(self.wish.rescore), "search": searched}
        kept = {**recorded(run.folder, RESCORING), self.key: told}
        write_whole(run.folder / RESCORING, json.dumps(kept, indent=1).encode())
        return listing, replace(self, weight=weight)

    def scored(self, found: Decoded) -> dict[str, Scored]:
        """The lists of a set with the scores of both models."""
        return {name: scored(listed, self.ngram, self.lstm) for name, listed in found.lists.items()}

    def chosen(self, found: Decoded) -> Decoded:
        """The hypothesis of the least cost of every utterance."""
        assert self.weight is not None  # tuned before
        return replace(found, lists={name: (each.best(self.weight),) for name, each in self.scored(found).items()})

    def _described(self, options: DecodeOptions) -> dict[str, Any]:
        """Acoustic models and settings of a search, on which the best weight depends, in JSON's terms."""
        settings = {name: getattr(options, name) for name in ("acoustic_scale", "insertion_penalty", "listed")}
        words = {"words of the search": len(self.lstm.sayable)}
        return {"acoustic models": list(self.acoustic), **settings, **words}

    def _warn_of_changes(self, searched: Mapping[str, Any]) -> None:
        before = self.tuned_with
        changed = [name for name, value in searched.items() if before and before.get(name) != value]
        if changed:
            log.warning(
                "the weight %g of %s was tuned in a search with other values of %s: tune it again with --dev DATA",
                self.weight,
                self.wish.rescore,
                ", ".join(changed),
            )


def best_weight(lists: Mapping[str, Scored], references: Mapping[str, str]) -> tuple[float, int]:
    """The weight of `WEIGHTS` with the fewest errors on development data, and their number.

    The best weights may lie apart; the middle one of the longest run of neighbours is taken.
    """
    errors = {}
    for weight in WEIGHTS:
        rate = score(references, {name: each.best(weight).text for name, each in lists.items()})
        errors[weight] = rate.errors
        log.info("weight %g of the language model, dev: %s", weight, rate)
    fewest = min(errors.values())
    alike = [list(run) for best, run in groupby(WEIGHTS, key=lambda weight: errors[weight] == fewest) if best]
    longest = max(alike, key=len)
    chosen = longest[len(longest) // 2]
    if chosen == WEIGHTS[-1]:
        log.warning("weight %g is the largest one tried", chosen)
    return chosen, fewest


def opened_rescorer(
    wish: Rescoring, run: TrainedRun, search: SearchRequest, others: Sequence[TrainedRun] = ()
) -> Rescorer:
    """Open the language model, and the n-gram model of the search; `others` decode together with `run`.

    Raises:
        SettingError: the search has no n-gram model, no word of it is known to the language model, or there is neither
            a weight nor data to tune it on.
    """
    ngram = _ngram_of(run, search)
    stem = wish.model
    lang, grammar = run.graphs.words(search.grammar or run.graphs.search.grammar)
    key = f"{sha256_of(stem.with_suffix('.safetensors'))} {run.graphs.key(lang, grammar)}"
    weight, tuned_with = _weight(wish, run.folder, key, search.dev)
    with timed("loading the language model"):
        words, model = _model_of(stem)
    lstm = LstmScores(model, words, searched_words(lang, grammar))
    _check_words(lstm, wish.rescore)
    acoustic = tuple(sha256_of(each.stem.with_suffix(".safetensors")) for each in (run, *others))
    return Rescorer(wish, key, acoustic, NgramScores(ngram), lstm, weight, tuned_with)


def _model_of(stem: Path) -> tuple[WordNumbers, LstmLanguageModel]:
    """Vocabulary and trained LSTM of a run."""
    portable, file = PortableLanguageModel.open(stem.parent / DESCRIPTION), stem.with_suffix(".safetensors")
    if FLOAT_BYTES * portable.weights > file.stat().st_size:  # before memory is taken
        raise SettingError(
            f"{stem.parent / DESCRIPTION} describes a model of {portable.weights} weights, and {file} holds fewer: copy"
            " the run again"
        )
    model = portable.build()
    read_into(model, stem)
    return portable.words, model.eval()


def _ngram_of(run: TrainedRun, search: SearchRequest) -> NgramModel:
    grammar = search.grammar or run.graphs.search.grammar
    found = None if search.is_best_path(run.graphs) else run.graphs.language_model(grammar)
    if found is None:
        name = search.named or grammar
        raise SettingError(
            f"--rescore mixes a language model with the n-gram model of the search, and {name!r} has none: search with"
            " one (--lm FILE, or --grammar with the name of a language model)"
        )
    return found


def _weight(wish: Rescoring, folder: Path, key: str, dev: str | None) -> tuple[float | None, Mapping[str, Any]]:
    """The given weight, else None if it is to be tuned, else the one tuned before with the search of its tuning."""
    if wish.lm_weight is not None:
        return wish.lm_weight, {}
    if dev is not None:
        folder_to_write(folder, "--model")
        return None, {}
    kept = recorded(folder, RESCORING).get(key)
    match kept:
        case {"weight": int() | float() as weight, "search": dict() as searched} if 0 <= weight <= 1:
            return float(weight), searched
    raise SettingError(
        f"no weight of {wish.rescore} was tuned with this vocabulary and grammar: tune it with --dev DATA, or give"
        " --lm-weight, such as 0.5"
    )


def _check_words(lstm: LstmScores, model: Path | None) -> None:
    """Log how many words of the search the language model does not know; it must know one."""
    missing, count = lstm.unseen, len(lstm.sayable)
    if len(missing) == count:
        raise SettingError(
            f"--rescore {model}: it knows none of the {count} words of the search ({named(missing)}), but"
            f" {named(lstm.words.words[2:])}: train it on text in the same writing; upper and lower case count"
        )
    if missing:
        log.warning(
            "%d of %s of the search %s unknown to %s: %s; the probability of <unk> is shared among them",
            *(len(missing), counted(count, "word"), are(len(missing)), model, named(missing)),
        )
