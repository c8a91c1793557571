"""Rules that turn published transcripts and a user's texts into words, each with a sentence that states it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from murmur.speech.lexicon.spelling import JOINERS, is_mark

_MARKS = re.compile(r"<[^<>]*>|\[[^\[\]]*\]|\{[^{}]*\}|\+\+[^+]*\+\+")
_OTHER_DOT = re.compile("·(?!(?<=L·)L|(?<=[NS]·)H)")  # not that of Catalan l·l, Occitan n·h and s·h
_ZERO_WIDTH_SPACE = "\u200b"
_UNSEEN_MARKS = re.compile("[\u034f\ufe00-\ufe0f\U000e0100-\U000e01ef]")  # grapheme joiner, variation selectors
_SPACED = ("LATIN ", "GREEK ", "CYRILLIC ", "ARMENIAN ", "GEORGIAN ", "HEBREW ")  # scripts without joiners


@dataclass(frozen=True)
class TranscriptRule:
    """A function of a transcript, and its description for the manifest of a set."""

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
    """A text without characters that cannot be seen: soft hyphens, marks of direction, variation selectors.

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


OPENING = "‘"  # noqa: RUF001 - that is the mark; in German, it closes
APOSTROPHES = str.maketrans("’‘ʼ＇`´′‛", "''''''''")  # noqa: RUF001 - those are what is replaced
_QUOTES = str.maketrans("’‘＇`´′‛", "'''''''")  # noqa: RUF001 - without the letter ʼ, which is no quotation mark
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
    """A text in capitals with spaces for single quotation marks, and with ' for other apostrophes.

    'come in' is a quotation, 'tis, dogs' and rock 'n' roll are words: an apostrophe before a word opens a quotation if
    one after a word closes it before the next one opens. A mark ‘ at an end of a word is never an apostrophe.
    """
    plain = _SEVERAL.sub(lambda found: " " * len(found[0]), text.translate(_QUOTES))
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


# Conversations of telephone corpora. A transcript becomes empty if it marks speech that is not written out, which
# training must not see.
TAG = re.compile(r"<[^<>]*>")
CONTRACTION = re.compile(r'<contraction\b[^"]*"[^"]*"\s*>', re.IGNORECASE)  # its attribute holds > of its own
LAUGHED = re.compile(r"\[laughter-(.+)\]")
SAID_FOR = re.compile(r"\[([^/]+)/.+\](-?)")
COINED = re.compile(r"(-?)\{(.+)\}(-?)")
CUT_OFF_END, CUT_OFF_BEGIN = re.compile(r"(.+)\[[^\[\]]+\]-"), re.compile(r"-\[[^\[\]]+\](.+)")
VARIANT = re.compile(r"_\d+$")
MARK = re.compile(r"\[[^\[\]]*\]|\{[^{}]*\}")
UNHEARD = re.compile(r"\(\(\s*\)\)")
FOREIGN = re.compile(r"<\s*[A-Za-z?]+\s+[^<>]+>")
ALTERNATIVES = re.compile(r"\{([^{}/]*)(?:/[^{}]*)?\}")


def spoken(text: str) -> str:
    """Capital letters, digits, apostrophes, and hyphens at one end of a word."""
    text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).upper()).translate(APOSTROPHES)
    text = "".join(c if c.isalnum() or c in "'-" or unicodedata.category(c) == "Mn" else " " for c in text)
    return " ".join(part for word in text.split() for part in _parts(word))


def _parts(word: str) -> list[str]:
    """The words between hyphens; of those at the ends, the last one stays, or else the first one."""
    parts = [part for part in word.split("-") if any(c.isalnum() for c in part)]
    if parts and word.endswith("-"):
        parts[-1] += "-"
    elif parts and word.startswith("-"):
        parts[0] = f"-{parts[0]}"
    return parts


def _switchboard(text: str) -> str:
    return spoken(" ".join(filter(None, (_switchboard_word(word) for word in TAG.sub(" ", text).split()))))


def _switchboard_word(word: str) -> str:
    if laughed := LAUGHED.fullmatch(word):
        word = laughed[1]
    if said := SAID_FOR.fullmatch(word):
        word = said[1] + said[2]
    if coined := COINED.fullmatch(word):
        word = "".join(coined.groups())
    if MARK.fullmatch(word):
        return ""
    if cut := CUT_OFF_END.fullmatch(word):
        word = f"{cut[1]}-"
    elif cut := CUT_OFF_BEGIN.fullmatch(word):
        word = f"-{cut[1]}"
    return VARIANT.sub("", word)


def _fisher(text: str) -> str:
    if UNHEARD.search(text):
        return ""
    return spoken(re.sub(r"\.(?=')", "", MARK.sub(" ", text)))  # i._d.'s is I D'S


def _callhome(text: str) -> str:
    text = CONTRACTION.sub(" ", text)
    if UNHEARD.search(text) or FOREIGN.search(text):
        return ""
    # `++` and `**` beside letters disappear as all other punctuation does, in `spoken`.
    return spoken(MARK.sub(" ", TAG.sub(" ", text)))


def _stm(text: str) -> str:
    text = TAG.sub(" ", CONTRACTION.sub(" ", text))
    while (chosen := ALTERNATIVES.sub(lambda found: f" {found[1]} ", text)) != text:
        text = chosen
    return spoken(re.sub(r"%hesitation", "uh", text, flags=re.IGNORECASE))


def _rule(words: str, apply: Callable[[str], str]) -> TranscriptRule:
    return TranscriptRule(f"{words}; {ENDING}", apply)


ENDING = (
    "NFC; typographic apostrophes become '; capitals; a hyphen stays where a word is cut off (TH-, -T) and separates"
    " words elsewhere; everything else but letters, digits and apostrophes separates words"
)
SPOKEN = TranscriptRule(ENDING, spoken)  # a fragment keeps its hyphen: NIST's scoring lets it match longer words
SWITCHBOARD = _rule(
    "[laughter], [noise], [vocalized-noise], [silence], <b_aside> and <e_aside> are left out; [laughter-yes] is YES,"
    " [it'n/isn't] is IT'N (as said), {coined} is COINED, them_1 is THEM, th[at]- is TH-, -[tha]t is -T",
    _switchboard,
)
FISHER = _rule(
    "((uncertain)) words stay and a segment with an empty (( )) is left out; [laughter], [noise] and other [..] are"
    " left out; t._v. is T V",
    _fisher,
)
CALLHOME = _rule(
    "{laugh} and other {..}, [..], and tags <..> are left out; %um is UM, &Name is NAME, +mispronounced+ and **coined**"
    " stay as written; ((uncertain)) words stay; a segment with an empty (( )) or with foreign words <Spanish ..> is"
    " left out",
    _callhome,
)
STM = _rule(
    "of { a / b } the first, @ is no word, optional (uh) is UH, %HESITATION is UH; tags <..> are left out",
    _stm,
)
