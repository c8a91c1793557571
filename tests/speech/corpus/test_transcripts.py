"""Rules for transcripts: their output, also for hostile text, and that applying them twice changes nothing."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from murmur.speech.corpus.published.transcripts import (
    CALLHOME,
    ENGLISH,
    FISHER,
    PROSE,
    SPOKEN,
    STM,
    SWITCHBOARD,
    UNSPACED,
    TranscriptRule,
)


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
        ("Donau\u00addampf\u00adschiff", "DONAUDAMPFSCHIFF"),
        ("\ufeffhel\u200blo\u2060 \u200ethere\u202c", "HELLO THERE"),
        ("Auf\u200clage \ufb01ne ya\ufe0f", "AUFLAGE FINE YA"),
        ("\u0e44\u0e17\u0e22\u200b\u0e44\u0e17\u0e22", "\u0e44\u0e17\u0e22 \u0e44\u0e17\u0e22"),  # Thai
        ("la col\u00b7lecci\u00f3 i a\u0140la", "LA COL\u00b7LECCI\u00d3 I AL\u00b7LA"),
        ("in\u00b7hibir, a\u00b7b l \u00b7 l", "IN\u00b7HIBIR A B L L"),
        ("wait\u2026what\u2014no\u2013yes it\u00b4s", "WAIT WHAT NO YES IT'S"),
        ("'TIS THE DOGS' BONE", "'TIS THE DOGS' BONE"),  # published transcripts have no quotation marks
    ],
)
def test_english(text, words):
    for rule in (ENGLISH, PROSE):
        assert rule.apply(text) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\u2018Come in,\u2019 she said. \u2018It\u2019s late.\u2019", "COME IN SHE SAID IT'S LATE"),
        ("He said \"yes\" and she said 'no' twice.", "HE SAID YES AND SHE SAID NO TWICE"),
        ("'The dogs' bone is here,' he said", "THE DOGS' BONE IS HERE HE SAID"),
        ("'Yes' for the boys' school, 'no' otherwise", "YES FOR THE BOYS' SCHOOL NO OTHERWISE"),
        ("''Come'' in,'' he said", "COME IN HE SAID"),
        ("\u2018tis the \u201990s, rock \u2018n\u2019 roll", "'TIS THE '90S ROCK 'N' ROLL"),
        ("Goin' home to see 'em, 'cause o' that", "GOIN' HOME TO SEE 'EM 'CAUSE O' THAT"),
        ("\u2018A line that goes on", "A LINE THAT GOES ON"),
        ("\u201aGut\u2018, sagte er, \u203aja\u2039", "GUT SAGTE ER JA"),
        ("l\u2019ami d\u2019Aix, dell\u2019arte", "L'AMI D'AIX DELL'ARTE"),
    ],
)
def test_quotation_marks_are_no_apostrophes(text, words):
    assert PROSE.apply(text) == words
    assert PROSE.apply(words) == words


def test_unspaced_text_has_latin_letters_of_one_width():
    assert UNSPACED.apply(" 而 对 \uff54 v ") == "而对TV"


@given(st.text(max_size=40))
@example("ß ǆ ŉ")
@example("\u0390")  # its capital is three characters, of which two compose
def test_words_are_upper_case_letters_digits_and_apostrophes(text):
    for rule in (ENGLISH, PROSE):
        once = rule.apply(text)
        assert rule.apply(once) == once
        assert once == " ".join(once.split())
        assert unicodedata.is_normalized("NFC", once)
        assert all(c.isalnum() or c in " '\u00b7\u200c\u200d" or unicodedata.category(c)[0] == "M" for c in once)


CASES: dict[str, tuple[TranscriptRule, dict[str, str]]] = {
    "switchboard": (
        SWITCHBOARD,
        {
            "th[at]- that": "TH- THAT",
            "-[tha]t one": "-T ONE",
            "uh um-hum huh-uh um": "UH UM HUM HUH UH UM",
            "[laughter] [noise] [vocalized-noise] [silence]": "",
            "[laughter-yes] [laughter-th[at]-]": "YES TH-",
            "<b_aside> hi there <e_aside> so": "HI THERE SO",
            "{splurgy} {shmurgy}-": "SPLURGY SHMURGY-",
            "them_1 about_1 okay": "THEM ABOUT OKAY",
            "[it'n/isn't] [lem[guini]-/linguini]": "IT'N LEM-",
            "i'm a twenty-one t_v": "I'M A TWENTY ONE T V",
            "[laughter-[becau[se]-/because]] [laughter-them_1]": "BECAU- THEM",
        },
    ),
    "fisher": (
        FISHER,
        {
            "((you know)) it's": "YOU KNOW IT'S",
            "i said (( )) and": "",
            "(( ))": "",
            "[laughter] yeah [noise] uh-huh": "YEAH UH HUH",
            "on t._v. and my i._d.'s": "ON T V AND MY I D'S",
            "i- i w-- was -- well": "I- I W- WAS WELL",
        },
    ),
    "callhome": (
        CALLHOME,
        {
            "{laugh} yeah {breath}": "YEAH",
            "%um, I %uh %huh": "UM I UH HUH",
            "&Bob and &Mary's": "BOB AND MARY'S",
            "+aminals+ are **splorchy**": "AMINALS ARE SPLORCHY",
            "((at home)) I th- think --": "AT HOME I TH- THINK",
            "so (( )) then": "",
            "<Spanish hasta luego> bye": "",
            "<contraction e_form=\"[we=>we]['re=>are]\">we're here": "WE'RE HERE",
            "[background] [/static] hello [static/] //to her// no": "HELLO TO HER NO",
            "@NASA ~TV": "NASA TV",
        },
    ),
    "stm": (
        STM,
        {
            "(%HESITATION) so (th-) { GOING TO / GONNA } go": "UH SO TH- GOING TO GO",
            "{ @ / uh } a { b / { c / d } } e": "A B E",
            "<b_aside> yes <e_aside>": "YES",
        },
    ),
}


@pytest.mark.parametrize(
    ("rule", "text", "words"),
    [(rule, text, words) for rule, cases in CASES.values() for text, words in cases.items()],
)
def test_conventions(rule: TranscriptRule, text: str, words: str) -> None:
    assert rule.apply(text) == words


@given(st.text(alphabet="aé_1'-[]{}()<>/%&+* ßtŉ\u0301", max_size=24))
def test_words_are_capitals_with_at_most_one_hyphen_at_an_end(text: str) -> None:
    for rule in (SPOKEN, SWITCHBOARD, FISHER, CALLHOME, STM):
        once = rule.apply(text)
        assert SPOKEN.apply(once) == once == " ".join(once.split())
        assert unicodedata.is_normalized("NFC", once)
        for word in once.split():
            assert word.count("-") <= 1
            assert "-" not in word[1:-1]
            assert any(c.isalnum() for c in word)
            assert all(c.isalnum() or c in "'-" or unicodedata.category(c) == "Mn" for c in word)


def test_every_rule_states_itself() -> None:
    stated = [rule.words for rule, _ in CASES.values()]
    assert len(set(stated)) == len(stated)
    assert all(SPOKEN.words in words for words in stated)
