"""Rules for transcripts of telephone conversations: Switchboard, Fisher, CallHome, and NIST's STM of Hub5'00.

All rules end alike, by `SPOKEN`: capitals, and a fragment keeps its hyphen (`TH-`), since its sound is in the recording
and NIST's scoring lets it match the words that begin so. A transcript becomes empty if it marks speech that is not
written out; training must not see such a stretch.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from murmur.speech.corpus.published.quotation_marks import APOSTROPHES
from murmur.speech.corpus.published.transcripts import TranscriptRule

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
SPOKEN = TranscriptRule(ENDING, spoken)
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
