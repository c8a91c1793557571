"""Words as sequences of graphemes: letters with their combining marks, by fixed rules.

A grapheme is a code point and the marks after it (Unicode categories Mn, Mc, Me, and the joiners U+200C and U+200D),
after composition (NFC).
"""

from __future__ import annotations

import unicodedata
from typing import Literal

Digits = Literal["refuse", "read"]
JOINERS = frozenset("\u200c\u200d")
APOSTROPHES = frozenset("'\u2019\u02bc\uff07\u2018")
HYPHENS = frozenset("-\u2010\u2011\u2013\u00ad")
LONGEST = 60  # letters of a word
SILENT = APOSTROPHES | HYPHENS | {".", "\u00b7"}


_PLAIN = str.maketrans(dict.fromkeys(APOSTROPHES, "'") | dict.fromkeys(HYPHENS - {"\u00ad"}, "-") | {"\u00ad": ""})


class UnspeakableError(ValueError):
    """A token is not a word by the rules here; the message names the offending character."""


def graphemes(text: str) -> list[str]:
    """Split a text into its graphemes; marks before any letter stand alone."""
    found: list[str] = []
    for character in unicodedata.normalize("NFC", text):
        if found and is_mark(character):
            found[-1] += character
        else:
            found.append(character)
    return found


def folded(word: str) -> str:
    """A key shared by words with the same pronunciation: without case, with plain apostrophes and hyphens.

    Case folding is that of Unicode, so that Straße and STRASSE have the same key.
    """
    return word.casefold().translate(_PLAIN)


def check_word(word: str, digits: Digits = "refuse") -> None:
    """Accept words of letters, marks, apostrophes, hyphens and full stops, with at least one letter (or digit).

    Raises:
        UnspeakableError: another character, a digit (unless digits are read), a mark without its letter, no letter,
            or more than 60 letters.
    """
    parts, spoken = graphemes(word), False
    if len(parts) > LONGEST:
        raise UnspeakableError(f"{word[:20]!r}... has {len(parts)} letters, more than {LONGEST}: is it a word?")
    for grapheme in parts:
        first = grapheme[0]
        kind = unicodedata.category(first)
        if kind == "Nd" and digits == "refuse":
            raise UnspeakableError(f"{word!r} holds the digit {first!r}: write numbers as words, or let digits be read")
        if kind[0] != "L" and kind != "Nd" and first not in SILENT:
            name = unicodedata.name(first, f"U+{ord(first):04X}")
            raise UnspeakableError(f"{word!r} holds {first!r} ({name}), which is not a letter: remove it from the text")
        spoken = spoken or first not in SILENT
    if not spoken:
        raise UnspeakableError(f"{word!r} has no letter: remove it from the text")


def spell(word: str, digits: Digits = "refuse") -> tuple[str, ...]:
    """Graphemes as the pronunciation of a word: lower case; apostrophes, hyphens and full stops are silent.

    Raises:
        UnspeakableError: the word cannot be spelled, see `check_word`.
    """
    check_word(word, digits)
    return tuple(g for g in graphemes(word.lower()) if g[0] not in SILENT)


def is_mark(character: str) -> bool:
    """True for a combining mark or a joiner, which belong to the letter before them."""
    return unicodedata.category(character)[0] == "M" or character in JOINERS
