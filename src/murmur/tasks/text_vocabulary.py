"""Vocabulary and language models of decoding, made from a text: all its words, with guessed pronunciations."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.engine.experiment import ADDED
from murmur.speech.corpus.atomic_folder import atomic_folder
from murmur.speech.corpus.published.transcripts import Writing
from murmur.speech.corpus.synth import check_installed
from murmur.speech.language_model.arpa import write_arpa
from murmur.speech.language_model.kneser_ney import KneserNey, frequent_words
from murmur.tasks.prepared import Absent, refuse_to_make
from murmur.tasks.pronouncing import Guess, completed_lexicon
from murmur.tasks.sentences import check_text, sentences_of

log = logging.getLogger(__name__)
BIGRAM, TRIGRAM = "bg", "tg"


@dataclass(frozen=True)
class TextVocabulary:
    """Words of a text in place of those of a set's language models.

    The lexicon of decoding gets all words of the text; a bigram model "bg" and a trigram model "tg" of the text take
    the place of the set's models of these names.

    Attributes:
        text: file of one sentence a line, folder of .txt or .txt.gz files, or data directory; None keeps lexicon and
            language models of the set.
        min_count: least number of occurrences of a word.
        writing: rule for the words of the text: as-is, or english (capitals without punctuation) and unspaced, by
            which `murmur prepare` writes transcripts.
        guess: source of pronunciations for words that the set's lexicon lacks: espeak (espeak-ng, in CMUdict's
            phones), graphemes, or none, which leaves such words out.
        cutoffs: n-grams of n words that occur no more often than the n-th number are left out, for n = 1, 2, 3.
    """

    text: Path | None = None
    min_count: int = 1
    writing: Writing = field(default="as-is", repr=False, metadata=ADDED)
    guess: Guess = "espeak"
    cutoffs: tuple[int, int, int] = (0, 0, 1)

    def __post_init__(self) -> None:
        if self.min_count < 1:
            raise ValueError(f"min_count = {self.min_count}: it must be at least 1, which takes every word")
        self._estimators()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the language models that are made; none without a text."""
        return () if self.text is None else (BIGRAM, TRIGRAM)

    def check(self) -> None:
        """Check that the text is there, and the program that guesses.

        Raises:
            SettingError, SynthesisError: something is missing; the message names it.
        """
        if self.text is None:
            changed = [f.name for f in fields(self) if getattr(self, f.name) != getattr(TextVocabulary(), f.name)]
            if changed:
                raise SettingError(f"task.vocabulary.{changed[0]} has no effect without task.vocabulary.text")
        else:
            check_text([self.text])
            if self.guess == "espeak":
                check_installed()

    def check_use(self, grammar: str) -> None:
        """Check that the network's search takes one of the language models.

        Raises:
            SettingError: it takes another grammar, in which the words of the text have no probability or an equal one.
        """
        if self.text is not None and grammar not in self.names:
            raise SettingError(
                f"the network is decoded with the grammar {grammar!r}, which does not have the probabilities of"
                f" vocabulary.text: set decoding.network.grammar to {' or '.join(self.names)}"
            )

    def made(self, lexicon: Path, cache: Path, absent: Absent) -> tuple[Path, Mapping[str, Path]]:
        """The lexicon completed with the words of the text, and the language models; made in `cache` if missing.

        Raises:
            SettingError: the text cannot be read, or the cache lacks something that may not be made.
            PhoneError: a guess needs a phone that the lexicon lacks.
        """
        assert self.text is not None  # without a text nothing is made
        sentences = sentences_of([self.text], self.writing)
        words = frequent_words(sentences, None, self.min_count)
        if not words:
            raise SettingError(f"no word of {self.text} occurs {self.min_count} times: lower task.vocabulary.min_count")
        completed = completed_lexicon(lexicon, words, self.guess, cache, absent)
        return completed, self._models(sentences, words, cache, absent)

    def _models(
        self, sentences: Sequence[str], words: Sequence[str], cache: Path, absent: Absent
    ) -> Mapping[str, Path]:
        content = json.dumps([self.cutoffs, self.min_count, *sentences]).encode()
        folder = cache / f"lm-{hashlib.sha256(content).hexdigest()[:16]}"
        paths = {name: folder / f"{name}.arpa.gz" for name in self.names}
        if not folder.is_dir():
            if absent == "refuse":
                refuse_to_make(f"the language models of {self.text}", cache)
            told = counted(len(words), "word"), counted(len(sentences), "sentence")
            log.info("language models of %s from %s: %s", *told, folder)
            with atomic_folder(folder) as new:
                for name, estimator in self._estimators().items():
                    write_arpa(estimator.train(sentences, words).model, new / paths[name].name)
        return paths

    def _estimators(self) -> dict[str, KneserNey]:
        return {BIGRAM: KneserNey(2, self.cutoffs[:2]), TRIGRAM: KneserNey(3, self.cutoffs)}
