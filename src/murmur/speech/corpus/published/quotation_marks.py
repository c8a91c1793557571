"""Single quotation marks, told from apostrophes: 'come in' is a quotation, 'tis, dogs' and rock 'n' roll are words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from murmur.speech.lexicon.spelling import is_mark

OPENING = "‘"  # noqa: RUF001 - that is the mark; in German, it closes
APOSTROPHES = str.maketrans("’‘ʼ＇`´′‛", "''''''''")  # noqa: RUF001 - those are what is replaced
_MARKS = str.maketrans("’‘＇`´′‛", "'''''''")  # noqa: RUF001 - without the letter ʼ, which is no quotation mark
_SEVERAL = re.compile("''+")
_LETTERS = re.compile(r"\w+")
_DECADE = re.compile(r"\d\dS?")
_ELISIONS = """
    bout cause cept coz cos cuz d eer em ere fraid gainst k kay ll m mid midst mong mongst n neath ne nem nen ner nother
    nuff pon r rauf raus re rein round rum runter s scuse spect stead t tain taint til till tis tisn twas twasn twere
    twill twixt twould un ve
"""  # words that begin with an apostrophe, of English, German and Dutch
ELISIONS = frozenset(_ELISIONS.upper().split())
_WORD_ENDS = ("S", "N", "O")  # letters before the apostrophe of dogs', goin', an' and o'


def unquoted(text: str) -> str:
    """Return a text in capitals with spaces for single quotation marks, and with ' for other apostrophes.

    An apostrophe before a word opens a quotation if one after a word closes it before the next one opens. A mark ‘ at
    an end of a word is never an apostrophe. Words such as 'tis and '90s open nothing.
    """
    plain = _SEVERAL.sub(lambda found: " " * len(found[0]), text.translate(_MARKS))
    places = [at for at, character in enumerate(plain) if character == "'"]
    opening = [at for at in places if _opens(plain, at)]
    closing = [at for at in places if _closes(plain, at)]
    dropped = {at for at in closing if text[at] == OPENING}
    for number, at in enumerate(opening):
        end = opening[number + 1] if number + 1 < len(opening) else len(plain)
        close = _closing_of(plain, [other for other in closing if at < other < end])
        if close is not None:
            dropped |= {at, close}
        elif text[at] == OPENING:
            dropped.add(at)
    return "".join(" " if at in dropped else character for at, character in enumerate(plain)).translate(APOSTROPHES)


def _is_letter(character: str) -> bool:
    return character.isalnum() or is_mark(character)


def _opens(text: str, at: int) -> bool:
    """True if a mark stands before a word, and the word is not one that begins with an apostrophe."""
    word = _LETTERS.match(text, at + 1)
    if word is None or (at and _is_letter(text[at - 1])):
        return False
    return word[0] not in ELISIONS and not _DECADE.fullmatch(word[0])


def _closes(text: str, at: int) -> bool:
    """True if a mark stands after a word, or after the stop behind a word."""
    after = text[at + 1 : at + 2]
    return at > 0 and not text[at - 1].isspace() and not (after and _is_letter(after))


def _closing_of(text: str, places: Sequence[int]) -> int | None:
    """The place that closes a quotation: the first that is not likely to be an apostrophe, else the first."""
    sure = (at for at in places if not _is_letter(text[at - 1]) or not text.endswith(_WORD_ENDS, 0, at))
    return next(sure, places[0] if places else None)
