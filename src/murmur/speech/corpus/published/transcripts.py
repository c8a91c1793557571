"""Rules that turn published transcripts into words for training, each with a sentence that states it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from murmur.speech.lexicon.spelling import is_mark

_MARKS = re.compile(r"<[^<>]*>|\[[^\[\]]*\]|\{[^{}]*\}|\+\+[^+]*\+\+")
APOSTROPHES = str.maketrans("’‘ʼ＇`", "'''''")  # noqa: RUF001 - those are what is replaced


@dataclass(frozen=True)
class TranscriptRule:
    """A function of a transcript, and its description (for the manifest of a set)."""

    words: str
    apply: Callable[[str], str]


def _english(text: str) -> str:
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).upper())  # some capitals are no longer NFC
    text = _MARKS.sub(" ", text.translate(APOSTROPHES))
    kept = "".join(c if c.isalnum() or c == "'" or is_mark(c) else " " for c in text)
    return " ".join(word for word in kept.split() if any(c.isalnum() for c in word))


def _unspaced(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).upper().split())


ENGLISH = TranscriptRule(
    "NFC; <..>, [..], {..} and ++..++ are marks of noise and left out; typographic apostrophes become '; capitals; "
    "everything but letters with their marks, digits and apostrophes separates words",
    _english,
)
UNSPACED = TranscriptRule(
    "NFKC, so that Latin letters have one width; capitals; no white space: a character is a unit", _unspaced
)
Writing = Literal["as-is", "english", "unspaced"]  # names of the rules for a user's text
WRITINGS: Mapping[Writing, Callable[[str], str]] = {"as-is": str, "english": ENGLISH.apply, "unspaced": UNSPACED.apply}
