"""Rules that turn published transcripts and a user's texts into words, each with a sentence that states it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from murmur.speech.corpus.published.quotation_marks import APOSTROPHES, unquoted
from murmur.speech.lexicon.spelling import JOINERS, is_mark

_MARKS = re.compile(r"<[^<>]*>|\[[^\[\]]*\]|\{[^{}]*\}|\+\+[^+]*\+\+")
_OTHER_DOT = re.compile("·(?!(?<=L·)L|(?<=[NS]·)H)")  # not that of Catalan l·l, Occitan n·h and s·h
_ZERO_WIDTH_SPACE = "\u200b"
_UNSEEN_MARKS = re.compile("[\u034f\ufe00-\ufe0f\U000e0100-\U000e01ef]")  # grapheme joiner, variation selectors
_SPACED = ("LATIN ", "GREEK ", "CYRILLIC ", "ARMENIAN ", "GEORGIAN ", "HEBREW ")  # scripts without joiners


@dataclass(frozen=True)
class TranscriptRule:
    """A function of a transcript, and its description (for the manifest of a set)."""

    words: str
    apply: Callable[[str], str]


def _english(text: str) -> str:
    return _words(_capitals(text).translate(APOSTROPHES))


def _prose(text: str) -> str:
    return _words(unquoted(_MARKS.sub(" ", _capitals(text))))


def _capitals(text: str) -> str:
    capitals = visible(unicodedata.normalize("NFC", text)).upper().replace("Ŀ", "L·")
    return unicodedata.normalize("NFC", capitals)  # some capitals are no longer NFC


def _words(text: str) -> str:
    text = _OTHER_DOT.sub(" ", _MARKS.sub(" ", text))
    kept = "".join(c if c.isalnum() or c in "'·" or is_mark(c) else " " for c in text)
    return " ".join(word for word in kept.split() if any(c.isalnum() for c in word))


def visible(text: str) -> str:
    """Return a text without characters that cannot be seen: soft hyphens, marks of direction, variation selectors.

    Joiners stay where they change letters, as in Persian. A space of no width separates words of scripts without
    spaces, such as Khmer; between other letters it is left out.
    """
    if text.isascii():
        return text
    text = _UNSEEN_MARKS.sub("", text)
    kept = list[str]()
    for place, character in enumerate(text):
        if unicodedata.category(character) != "Cf" or (character in JOINERS and not _is_spaced(kept[-1:])):
            kept.append(character)
        elif character == _ZERO_WIDTH_SPACE and not (_is_spaced(kept[-1:]) and _is_spaced(text[place + 1 : place + 2])):
            kept.append(" ")
    return "".join(kept)


def _is_spaced(character: str | list[str]) -> bool:
    """True for a letter of a script that has spaces between words and no joiners."""
    return bool(character) and unicodedata.name(character[0], "").startswith(_SPACED)


def _unspaced(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).upper().split())


_ENGLISH = (
    "NFC; <..>, [..], {..} and ++..++ are marks of noise and left out; characters that cannot be seen, such as soft"
    " hyphens, are left out; typographic apostrophes become '; capitals; everything but letters with their marks,"
    " digits, apostrophes and the dot of l·l separates words"
)
ENGLISH = TranscriptRule(_ENGLISH, _english)
PROSE = TranscriptRule(f"{_ENGLISH}; single quotation marks around words are left out", _prose)
UNSPACED = TranscriptRule(
    "NFKC, so that Latin letters have one width; capitals; no white space: a character is a unit", _unspaced
)
Writing = Literal["as-is", "english", "unspaced"]  # names of the rules for a user's text
WRITINGS: Mapping[Writing, Callable[[str], str]] = {"as-is": str, "english": PROSE.apply, "unspaced": UNSPACED.apply}
