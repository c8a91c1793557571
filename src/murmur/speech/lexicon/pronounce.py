"""Lexicons for given words: pronunciations from a base lexicon, guesses for the rest, and the origin of each."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from murmur.speech.corpus.atomic_file import write_text_whole
from murmur.speech.lexicon.g2p import PhoneError, Phones
from murmur.speech.lexicon.lexicon import STRESSED, Entry, pronunciations_of, read_lexicon
from murmur.speech.lexicon.spelling import UnspeakableError, folded

LEXICON, ORIGINS, REFUSED = "lexicon.txt", "pronunciations.tsv", "refused.tsv"
SEEN = "seen"
NAMED = 8  # refused words in a message


class Guesser(Protocol):
    """Phones of a word that no lexicon has; raises UnspeakableError if the text is not a word."""

    @property
    def how(self) -> str:
        """A short description for the list of origins."""

    def __call__(self, word: str) -> Phones:
        """The phones of a word."""


class Origin(NamedTuple):
    """One pronunciation and its origin."""

    word: str
    phones: Phones
    how: str


@dataclass(frozen=True)
class Completed:
    """Pronunciations of the requested words, in byte order of the words.

    Attributes:
        origins: pronunciations; those of one word are adjacent, in the order of the base lexicon.
        refused: {word: reason}.
    """

    origins: tuple[Origin, ...]
    refused: dict[str, str]

    @property
    def entries(self) -> list[Entry]:
        """The lexicon."""
        return [(origin.word, origin.phones) for origin in self.origins]

    @property
    def guessed(self) -> list[Origin]:
        """Words that the base lexicon lacks under the same spelling."""
        return [origin for origin in self.origins if origin.how != SEEN]

    def reasons(self) -> str:
        """Reasons why the first words were refused, one line each."""
        lines = [f"\n    {word}: {why}" for word, why in list(self.refused.items())[:NAMED]]
        more = len(self.refused) - len(lines)
        return "".join(lines) + (f"\n    and {more} more" if more > 0 else "")

    def write(self, folder: Path) -> None:
        """Write lexicon.txt, pronunciations.tsv (word, pronunciation, how), refused.tsv (word, why) atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        lexicon = "".join(f"{word} {' '.join(phones)}\n" for word, phones in self.entries)
        rows = "".join(f"{word}\t{' '.join(phones)}\t{how}\n" for word, phones, how in self.origins)
        refused = "".join(f"{word}\t{why}\n" for word, why in self.refused.items())
        write_text_whole(folder / ORIGINS, f"word\tpronunciation\thow\n{rows}")
        write_text_whole(folder / REFUSED, f"word\twhy\n{refused}")
        write_text_whole(folder / LEXICON, lexicon)


def is_as_written(folder: Path) -> bool:
    """True if lexicon.txt of a folder has the pronunciations that are listed beside it: it was not edited."""
    if not (folder / ORIGINS).is_file():
        return False
    rows = [line.split("\t") for line in (folder / ORIGINS).read_text(encoding="utf-8").split("\n")[1:]]
    listed = {(row[0], tuple(row[1].split())) for row in rows if len(row) > 1}
    try:
        return set(read_lexicon(folder / LEXICON)) == listed
    except ValueError:  # an edit that is no lexicon
        return False


def complete(words: Iterable[str], base: Sequence[Entry] = (), guess: Guesser | None = None) -> Completed:
    """Pronunciations of `words`: all that `base` lists; else those of the word in another case or
    with other apostrophes; else a guess.

    Raises:
        PhoneError: guesses need phones that the phone set lacks; the message names each with a word.
    """
    prons = pronunciations_of(base)
    alike: dict[str, list[str]] = {}
    for word in prons:
        alike.setdefault(folded(word), []).append(word)
    origins: list[Origin] = []
    refused: dict[str, str] = {}
    lacking: dict[str, PhoneError] = {}
    for word in sorted({unicodedata.normalize("NFC", word) for word in words}, key=str.encode):
        others = alike.get(folded(word))
        if word in prons:
            origins += [Origin(word, phones, SEEN) for phones in prons[word]]
        elif others is not None:
            ways = {phones: other for other in reversed(others) for phones in prons[other]}  # each with its first word
            origins += [Origin(word, phones, f"seen as {other}") for phones, other in ways.items()]
        elif guess is None:
            refused[word] = "not in the lexicon"
        else:
            try:
                origins.append(Origin(word, guess(word), guess.how))
            except UnspeakableError as error:
                refused[word] = str(error)
            except PhoneError as error:
                lacking.setdefault(error.phone, error)
    if lacking:
        listing = "".join(f"\n  {error}" for error in lacking.values())
        raise PhoneError(f"the phone set lacks {', '.join(sorted(lacking))}:{listing}", ", ".join(sorted(lacking)))
    return Completed(tuple(origins), refused)


def completed_base(words: Iterable[str], base: Sequence[Entry], guess: Guesser | None = None) -> Completed:
    """The result of `complete`, with all other words of `base` added."""
    known = {word for word, _ in base}
    return complete([*known, *words], base, guess)


def has_stress(entries: Iterable[Entry]) -> bool:
    """True if phones carry CMUdict's stress digits (AH0)."""
    return any(STRESSED.fullmatch(phone) for _, phones in entries for phone in phones)


def phone_set(entries: Iterable[Entry]) -> frozenset[str]:
    """The phones of a lexicon, with every stress for a vowel that occurs with one."""
    found = {phone for _, phones in entries for phone in phones}
    vowels = {match[1] for phone in found if (match := STRESSED.fullmatch(phone))}
    return frozenset(found | {f"{vowel}{digit}" for vowel in vowels for digit in "012"})
