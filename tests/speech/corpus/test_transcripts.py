"""Rules for transcripts: their output, also for hostile text, and that applying them twice changes nothing."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from murmur.speech.corpus.published.transcripts import ENGLISH, UNSPACED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It\u2019s  a girl's dog.", "IT'S A GIRL'S DOG"),
        ("well -- [NOISE] <unk> GO {BREATH} ++UM++ on!", "WELL GO ON"),
        ("' alone '' quotes '", "ALONE QUOTES"),
        ("cafe\u0301 no. 7", "CAFÉ NO 7"),
        ("<s> ENTER  SIX </s>", "ENTER SIX"),
        ("...", ""),
        ("मैं हिन्दी बोलता हूँ", "मैं हिन्दी बोलता हूँ"),  # vowel signs are marks of category Mc
        ("\u0645\u06cc\u200c\u062e", "\u0645\u06cc\u200c\u062e"),  # Persian, with a joiner that is not spoken
        ("a \u200d b", "A B"),
    ],
)
def test_english(text, words):
    assert ENGLISH.apply(text) == words


def test_unspaced_text_has_latin_letters_of_one_width():
    assert UNSPACED.apply(" 而 对 \uff54 v ") == "而对TV"


@given(st.text(max_size=40))
@example("ß ǆ ŉ")
@example("\u0390")  # its capital is three characters, of which two compose
def test_words_are_upper_case_letters_digits_and_apostrophes(text):
    once = ENGLISH.apply(text)
    assert ENGLISH.apply(once) == once
    assert once == " ".join(once.split())
    assert unicodedata.is_normalized("NFC", once)
    assert all(c.isalnum() or c in " '\u200c\u200d" or unicodedata.category(c)[0] == "M" for c in once)
