"""The user's words and sentences for a trained acoustic model; words that decoding lacks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from murmur.core.counted import are, counted, named
from murmur.core.errors import SettingError
from murmur.speech import ctc
from murmur.speech.language_model.arpa import read_arpa, read_unigrams
from murmur.speech.language_model.grammar import Grammar, acceptor_grammar, loop_grammar, ngram_grammar
from murmur.speech.language_model.grammar_file import read_grammar, read_words
from murmur.speech.language_model.ngram import END, START, UNKNOWN_NAMES, NgramModel
from murmur.speech.lexicon.g2p import PHONES, Completed, Guesser, Origin, Phones, complete
from murmur.speech.lexicon.lexicon import EPSILON, NOISE, SILENCE, Entry, Lang, read_lexicon
from murmur.speech.lexicon.spelling import UnspeakableError, spell
from murmur.speech.tasks.pronouncing import Guess, guesser

log = logging.getLogger(__name__)
Kind = Literal["grammar", "lm", "words"]
WhichGuess = Literal["auto", "none", "espeak", "graphemes"]
LISTED = 40  # words in a message
_COMPARED = 200  # words of a lexicon used to find out if it is spelled
STRESSES = "012"
NOT_SPOKEN = frozenset({START, END, *UNKNOWN_NAMES})


@dataclass(frozen=True)
class Vocabulary:
    """The user's vocabulary, recognised in place of the words and sentences that a model was tested with.

    Attributes:
        kind: type of `source`: a grammar, a language model in ARPA format, or a list of words, of which any number may
            follow each other.
        source: the file.
        lexicon: pronunciations that take precedence over those of the model's lexicon.
        guess: source of pronunciations for words that neither lexicon has. "auto": the letters if the model's lexicon
            is spelled, else espeak-ng if it is installed and the model has CMUdict's phones, else none.
    """

    kind: Kind
    source: Path
    lexicon: Path | None = None
    guess: WhichGuess = "auto"

    @cached_property
    def content(self) -> tuple[Sequence[str], Callable[[Lang], Grammar]]:
        """The words, and the function that makes the grammar over a lexicon that has them all."""
        if self.kind == "words":
            return read_words(self.source), loop_grammar
        if self.kind == "grammar":
            acceptor = read_grammar(self.source)
            return acceptor.words, lambda lang: acceptor_grammar(lang, acceptor)
        model = read_arpa(self.source)
        words = [word for word in model.words if not is_mark(word)]
        return words, lambda lang: ngram_grammar(lang, model)

    @property
    def language_model(self) -> NgramModel | None:
        """The n-gram model of the file; None if it holds something else."""
        return read_arpa(self.source) if self.kind == "lm" else None

    def pronounced(self, words: Sequence[str], base: Sequence[Entry], phones: Collection[str]) -> list[Entry]:
        """Pronunciations of the words: from the user's lexicon, else from `base`, else guessed and logged.

        Raises:
            SettingError: a word has no pronunciation, or a pronunciation has a phone that is not in `phones`.
        """
        own = [] if self.lexicon is None else read_lexicon(self.lexicon, phones)
        given = {word for word, _ in own}
        entries = [*own, *(entry for entry in base if entry[0] not in given)]
        guess = self._guess(base, phones)
        found = complete(words, entries, None if guess == "none" else _guesser(guess, phones))
        self._check_phones(found, phones)
        if found.refused:
            raise SettingError(self._without(found, guess, phones))
        _log_origins(found)
        return found.entries

    def spelled(self, words: Sequence[str], units: ctc.Units) -> list[Entry]:
        """The words in the units of a CTC network that spells, in the case that it knows if it knows only one.

        Raises:
            SettingError: a word has letters that the network does not know, or a lexicon is given.
        """
        if self.lexicon is not None:
            raise SettingError(f"--lexicon {self.lexicon}: this network writes {units.kind}s, so words need no phones")
        origins, refused = [], {}
        for word in words:
            ways = [way for way in (word, word.upper(), word.lower()) if writable(units, way)]
            if ways:
                pieces = tuple(ctc.pieces(ways[0], units.kind))
                origins.append(Origin(word, pieces, "seen" if ways[0] == word else f"seen as {ways[0]}"))
            else:
                refused[word] = "unknown"
        if refused:
            raise SettingError(
                f"{self.source}: the network's {units.kind}s write {len(refused)} of {counted(len(words), 'word')} in"
                f" no case: {_listed(refused)}; leave them out, or spell them with units seen in training"
            )
        found = Completed(tuple(origins), refused)
        _log_origins(found)
        return found.entries

    def _guess(self, base: Sequence[Entry], phones: Collection[str]) -> Guess:
        if self.guess != "auto":
            return self.guess
        if _is_spelled(base):
            return "graphemes"
        return "espeak" if _is_english(phones) and find_spec("espeakng_loader") is not None else "none"

    def _check_phones(self, found: Completed, phones: Collection[str]) -> None:
        unknown = {
            phone: origin.word for origin in reversed(found.origins) for phone in origin.phones if phone not in phones
        }
        if unknown:
            first = [f"{phone} (in {word})" for phone, word in sorted(unknown.items())]
            stress = all(p[-1] in STRESSES and p[:-1] in phones for p in unknown)
            hint = "; take the stress digits off (murmur lexicon --stress drop)" if stress else ""
            raise SettingError(
                f"{self.lexicon} has phones that the acoustic model lacks: {_listed(first)}; it knows "
                f"{_listed(_spoken(phones))}{hint}"
            )

    def _without(self, found: Completed, guess: Guess, phones: Collection[str]) -> str:
        words = counted(len(found.refused), "word")
        own = f" nor in {self.lexicon}" if self.lexicon is not None else ""
        known = " ".join(_spoken(phones)[:LISTED])
        lines = f"give lines `word phone phone ...` of them by --lexicon FILE (phones: {known})"
        if guess != "none":
            return f"{self.source}: {words} can be neither looked up nor guessed: {found.reasons()}\n{lines}"
        more = ""
        if self.guess == "none":
            more = ", or let them be guessed (--guess auto)"
        elif _is_english(phones):
            more = ", or install the guesser: pip install 'murmur-asr[synth]'"
        return f"{self.source}: {words} not in the model's lexicon{own}: {_listed(list(found.refused))}; {lines}{more}"


@dataclass(frozen=True)
class _FittedGuess:
    """A guess with the stress of a vowel changed if the acoustic model lacks the guessed one."""

    guess: Guesser
    phones: Collection[str]

    @property
    def how(self) -> str:
        return self.guess.how

    def __call__(self, word: str) -> Phones:
        return tuple(map(self._fitted, self.guess(word)))

    def _fitted(self, phone: str) -> str:
        if phone in self.phones or phone[-1] not in STRESSES:
            return phone
        return next((other for s in STRESSES if (other := phone[:-1] + s) in self.phones), phone)


def _guesser(guess: Guess, phones: Collection[str]) -> Guesser | None:
    made = guesser(guess, [(phone, (phone,)) for phone in _spoken(phones)])
    return None if made is None else _FittedGuess(made, phones)


def is_mark(word: str) -> bool:
    """True for a language model's symbols that are not words, such as <s> and <unk>."""
    return word.startswith("<") and word.endswith(">")


def writable(units: ctc.Units, word: str) -> bool:
    return ctc.WORD_START not in word and units.covers(word)


def _spoken(phones: Collection[str]) -> list[str]:
    return sorted(set(phones).difference([EPSILON, SILENCE, NOISE]))


def _is_english(phones: Collection[str]) -> bool:
    """True if most phones are CMUdict's."""
    spoken = _spoken(phones)
    return 2 * sum(phone.rstrip(STRESSES) in PHONES for phone in spoken) > len(spoken)


def _is_spelled(base: Sequence[Entry]) -> bool:
    """True if the pronunciations of a lexicon are the letters of its words."""
    try:
        return bool(base) and all(spell(word, "read") == phones for word, phones in base[:_COMPARED])
    except UnspeakableError:
        return False


def _listed(words: Collection[str]) -> str:
    shown = list(words)[:LISTED]
    more = len(words) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _log_origins(found: Completed) -> None:
    """Log the words that were not in the lexicons under the same spelling, with their pronunciations."""
    for how, title in (("seen as", "found in another case"), ("guessed", "guessed"), ("spelled", "spelled")):
        alike = [origin for origin in found.guessed if origin.how.startswith(how)]
        if alike:
            shown = [f"{o.word} {' '.join(o.phones)}" for o in alike]
            words = len({origin.word for origin in alike})
            log.info("%s %s: %s", counted(words, "word"), title, _listed(shown))


def decoding_words(lexicon: Path, model: Path | None) -> list[str]:
    """Words of a lexicon that are also unigrams of a language model, in byte order; all of them without a model.

    Logs the words of the model that the lexicon lacks, with their share of its probability.
    """
    spoken = {word for word, _ in read_lexicon(lexicon)}
    if model is None:
        return sorted(spoken, key=str.encode)
    chances = {word: 10**log10 for word, log10 in read_unigrams(model).items() if word not in NOT_SPOKEN}
    lost = sorted(set(chances) - spoken, key=lambda word: (-chances[word], word.encode()))
    if lost:
        log.warning(
            "%d of %s of the language model %s cannot be recognised (the lexicon lacks them): %s; %.1f %% of the"
            " probability of its words is lost; upper and lower case count",
            *(len(lost), counted(len(chances), "word"), model.name, named(lost)),
            100 * sum(chances[word] for word in lost) / sum(chances.values()),
        )
    return sorted(spoken.intersection(chances), key=str.encode)


def check_known(texts: Mapping[str, str], words: Collection[str], name: str) -> None:
    """Log how many words of held-out transcripts are outside the vocabulary; refuse texts with none inside.

    Args:
        texts: transcripts.
        words: words that decoding can output.
        name: name of the data in messages.
    """
    counts = Counter(word for text in texts.values() for word in text.split())
    known = set(words)
    missing = Counter({word: count for word, count in counts.items() if word not in known})
    lost = named([word for word, _ in missing.most_common()])
    if counts and missing.total() == counts.total():
        raise SettingError(
            f"{name}: none of its {counted(counts.total(), 'word')} ({lost}) is in the vocabulary of"
            f" {counted(len(known), 'word')} ({named(sorted(known))}): take speech that the grammar is made for; upper"
            " and lower case count"
        )
    if missing:
        log.warning(
            "%d of %s of %s %s not in the vocabulary: %s",
            *(missing.total(), counted(counts.total(), "word"), name, are(missing.total()), lost),
        )
