"""Lexicons completed with guessed pronunciations, and the vocabulary of decoding that is made from a text."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from murmur.core.counted import counted, named
from murmur.core.errors import SettingError
from murmur.core.whole_files import atomic_folder
from murmur.speech.corpus.corpus import CorpusError
from murmur.speech.corpus.published.transcripts import Writing
from murmur.speech.corpus.synth import check_installed
from murmur.speech.language_model.columns import Scratch
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.language_model.ngram_counts import frequent_words
from murmur.speech.lexicon.g2p import (
    ARPABET,
    LEXICON,
    PHONES,
    Completed,
    EspeakGuess,
    GraphemeGuess,
    Guesser,
    PhoneMap,
    completed_base,
    has_stress,
    phone_set,
)
from murmur.speech.lexicon.lexicon import Entry, read_lexicon
from murmur.speech.lexicon.spelling import Digits
from murmur.speech.tasks.prepared import Absent, refuse_to_make
from murmur.speech.tasks.texts import SentenceFiles, check_text

log = logging.getLogger(__name__)
Guess = Literal["none", "espeak", "graphemes"]
BIGRAM, TRIGRAM = "bg", "tg"
_MODEL_MEMORY_BYTES = 1 << 30


def guesser(
    guess: Guess, base: Sequence[Entry] = (), digits: Digits = "refuse", voice: str = "en-us", map: Path | None = None
) -> Guesser | None:
    """A guesser of pronunciations for words that `base` lacks, in the phones of `base`.

    espeak-ng's sounds become CMUdict's phones, or those of the file `map`; vowels carry stress digits if and only if
    those of `base` do.
    """
    phones = phone_set(base)
    if guess == "none":
        return None
    if guess == "graphemes":
        return GraphemeGuess(phones, digits)
    english = voice == "en-us"
    if map is None and not english:
        raise ValueError(f"the sounds of voice {voice!r} need a phone map (lines `IPA phone`): only en-us needs none")
    if map is None and phones and not phones & (PHONES | {f"{p}{d}" for p in PHONES for d in "012"}):
        raise ValueError(
            f"the base lexicon has none of CMUdict's phones; it has {sorted(phones)[:5]}: give a phone map"
        )
    images = ARPABET if map is None else PhoneMap.read(map)
    return EspeakGuess(images, phones, has_stress(base), digits, voice, "LATIN" if english else "")


def completed_lexicon(path: Path, texts: Iterable[str], guess: Guess, cache: Path, absent: Absent = "make") -> Path:
    """The lexicon at `path`, or one completed with the words of `texts` that it lacks.

    A completed lexicon is stored in a folder of `cache`, with the origin of each pronunciation; the log names it.
    """
    if not path.is_file() and guess == "none":
        raise CorpusError(
            f"there is no lexicon {path}: name one (task.lexicon), or guess all words (task.guess=espeak)"
        )
    base = read_lexicon(path) if path.is_file() else []
    words = sorted({word for text in texts for word in text.split()})
    if not set(words).difference(word for word, _ in base):
        return path
    content = hashlib.sha256(json.dumps([base, words, guess]).encode()).hexdigest()[:16]
    folder = cache / f"lexicon-{content}"
    if (folder / LEXICON).is_file():  # written last, so all files exist
        return folder / LEXICON
    if absent == "refuse":
        refuse_to_make(f"the completed lexicon {folder.name}", cache)
    found = completed_base(words, base, guesser(guess, base))
    log_words(found, folder)
    if not found.entries:
        raise CorpusError(f"no word of the transcripts has a pronunciation: {found.reasons()}")
    found.write(folder)
    return folder / LEXICON


def log_words(found: Completed, folder: Path) -> None:
    guessed = sorted({origin.word for origin in found.guessed}, key=str.encode)
    if guessed:
        log.info("%s guessed or found in another case (%s): %s", counted(len(guessed), "word"), named(guessed), folder)
    if found.refused:
        log.warning("%s without a pronunciation: %s", counted(len(found.refused), "word"), found.reasons())


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
    writing: Writing = "as-is"
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
        """Check that the text is there, and the program that guesses."""
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
        """The lexicon completed with the words of the text, and the language models; made in `cache` if missing."""
        assert self.text is not None  # without a text nothing is made
        sentences = SentenceFiles([self.text], self.writing)
        words = frequent_words(sentences, None, self.min_count)
        if not words:
            raise SettingError(f"no word of {self.text} occurs {self.min_count} times: lower task.vocabulary.min_count")
        completed = completed_lexicon(lexicon, words, self.guess, cache, absent)
        return completed, self._models(sentences, words, cache, absent)

    def _models(
        self, sentences: Iterable[str], words: Sequence[str], cache: Path, absent: Absent
    ) -> Mapping[str, Path]:
        content, count = hashlib.sha256(json.dumps([self.cutoffs, self.min_count])[:-1].encode()), 0
        for sentence in sentences:
            content.update(f", {json.dumps(sentence)}".encode())
            count += 1
        content.update(b"]")
        folder = cache / f"lm-{content.hexdigest()[:16]}"
        paths = {name: folder / f"{name}.arpa.gz" for name in self.names}
        if not folder.is_dir():
            if absent == "refuse":
                refuse_to_make(f"the language models of {self.text}", cache)
            log.info(
                "language models of %s from %s: %s", counted(len(words), "word"), counted(count, "sentence"), folder
            )
            with atomic_folder(folder) as new:
                for name, estimator in self._estimators().items():
                    scratch = Scratch(_MODEL_MEMORY_BYTES, new)
                    estimator.write(sentences, new / paths[name].name, words, scratch=scratch)
        return paths

    def _estimators(self) -> dict[str, KneserNey]:
        return {BIGRAM: KneserNey(2, self.cutoffs[:2]), TRIGRAM: KneserNey(3, self.cutoffs)}
