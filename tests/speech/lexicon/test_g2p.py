"""Guessed pronunciations: the map to CMUdict's phones, stress, refusals, spelling, completed lexicons."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.speech.lexicon.g2p import (
    ARPABET,
    PHONES,
    VOWELS,
    EspeakGuess,
    GraphemeGuess,
    PhoneError,
    PhoneMap,
    Phonemizer,
    Sound,
    complete,
    completed_base,
    has_stress,
    phone_set,
)
from murmur.speech.lexicon.lexicon import read_lexicon
from murmur.speech.lexicon.spelling import SILENT, UnspeakableError, check_word, graphemes, spell

espeak = pytest.importorskip("espeakng_loader", reason="the extra synth is not installed")

BASE = [
    ("THE", ("DH", "AH")),
    ("THE", ("DH", "IY")),
    ("don't", ("D", "OW", "N", "T")),
    ("CAT", ("K", "AE", "T")),
]


def guess(word: str, **settings: object) -> str:
    return " ".join(EspeakGuess(ARPABET, script="LATIN", **settings)(word))


def test_every_image_is_a_phone_of_cmudict() -> None:
    assert len(PHONES) == 39
    assert {phone for image in ARPABET.images.values() for phone in image} <= PHONES
    assert all(ARPABET.images.values())
    assert VOWELS < PHONES


@pytest.mark.parametrize(
    ("word", "plain", "stressed"),
    [
        ("CAT", "K AE T", "K AE1 T"),
        ("butter", "B AH T ER", "B AH1 T ER0"),
        ("button", "B AH T AH N", "B AH1 T AH0 N"),
        ("about", "AH B AW T", "AH0 B AW1 T"),
        ("fire", "F AY ER", "F AY1 ER0"),
        ("little", "L IH T AH L", "L IH1 T AH0 L"),
        ("measure", "M EH ZH ER", "M EH1 ZH ER0"),
        ("café", "K AE F EY", "K AE0 F EY1"),
        ("hurry", "HH ER IY", "HH ER1 IY0"),
        ("\u00e0", "EY", "EY1"),  # not "a grave"
        ("\ufb01ne", "F AY N", "F AY1 N"),
        ("loch", "L AA K", "L AA1 K"),
        ("Argyll", "AA R G AY L", "AA1 R G AY0 L"),  # a palatalised consonant
        ("seventeen", "S EH V AH N T IY N", "S EH1 V AH0 N T IY2 N"),
    ],
)
def test_words_in_the_phones_of_cmudict(word: str, plain: str, stressed: str) -> None:
    assert guess(word) == plain
    assert guess(word, stress=True) == stressed


@pytest.mark.parametrize("word", ["don\u2019t", "DON'T", "don\u02bct"])
def test_apostrophes_and_case_make_no_difference(word: str) -> None:
    assert guess(word) == "D OW N T"


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("66", "digit '6'"),
        ("R2D2", "digit '2'"),
        ("<unk>", "LESS-THAN SIGN"),
        ("a\u0000b", "which is not a letter"),
        ("[noise]", "LEFT SQUARE BRACKET"),
        ("--", "no letter"),
        ("'", "no letter"),
        ("\u65e5\u672c", "en-us does not read"),
        ("\u041c\u043e\u0441\u043a\u0432\u0430", "en-us does not read"),
        ("\u0301", "which is not a letter"),
        ("a" * 61, "61 letters, more than 60"),
        ("k\u02b7", "en-us does not read"),
    ],
)
def test_what_is_no_word_is_refused_with_the_reason(word: str, reason: str) -> None:
    with pytest.raises(UnspeakableError, match=reason):
        guess(word)


def test_digits_are_read_where_that_is_wanted() -> None:
    assert guess("66", digits="read") == "S IH K S T IY S IH K S"
    assert spell("R2D2", "read") == ("r", "2", "d", "2")
    with pytest.raises(UnspeakableError, match="digit '2'"):
        spell("R2D2")


def test_a_phone_without_an_image_is_named() -> None:
    with pytest.raises(PhoneError, match=r"'MEASURE' is guessed as M EH ZH ER.*no phone 'ZH'"):
        guess("MEASURE", allowed=PHONES - {"ZH"})
    partial = PhoneMap({name: image for name, image in ARPABET.images.items() if name != "\u0292"})
    with pytest.raises(PhoneError, match=r"espeak-ng says /\u0292/ in 'MEASURE'.*add a line"):
        EspeakGuess(partial)("MEASURE")
    with pytest.raises(PhoneError, match="the phone set lacks JH, ZH:"):
        complete(["MEASURE", "JUDGE"], BASE, EspeakGuess(ARPABET, PHONES - {"ZH", "JH"}))


def test_maps_prefer_pairs_and_stressed_symbols() -> None:
    rows = "a A\n\u02c8a A1 A2 # stressed\na+b AB\nc\n"
    shape = PhoneMap.parse(rows, "rows")
    assert shape("w", (Sound("a", 0), Sound("c", 0), Sound("a", 1)), False) == ("A", "A1", "A2")
    assert shape("w", (Sound("a", 1), Sound("b", 0), Sound("a", 2)), False) == ("AB", "A1", "A2")
    with pytest.raises(ValueError, match="rows:5: 'a' appears twice"):
        PhoneMap.parse(rows + "a B", "rows")
    with pytest.raises(ValueError, match="holds no line"):
        PhoneMap.parse("# nothing\n", "rows")


def test_other_voices_with_a_map_of_their_own(tmp_path) -> None:
    sounds = {sound.ipa for word in ("guten", "Tag") for sound in Phonemizer("de")(word)}
    file = tmp_path / "map"
    file.write_text("".join(f"{ipa} {ipa}_G\n" for ipa in sorted(sounds)), encoding="utf-8")
    found = EspeakGuess(PhoneMap.read(file), voice="de")("Tag")
    assert found[0] == "t_G"
    assert len(found) >= 3


@given(st.text(max_size=12))
def test_spelling_gives_letters_or_a_reason(word: str) -> None:
    try:
        found = spell(word)
    except UnspeakableError:
        with pytest.raises(UnspeakableError):
            check_word(word)
        return
    assert found
    assert all(unicodedata.category(grapheme[0])[0] == "L" for grapheme in found)
    kept = "".join(g for g in graphemes(word.lower()) if g[0] not in SILENT)
    assert "".join(found) == kept


def test_graphemes_keep_marks_together() -> None:
    assert spell("Na\u0308ive") == ("n", "\u00e4", "i", "v", "e")
    assert spell("O'Neill-Smith") == tuple("oneillsmith")
    assert spell("\u0939\u093f\u0928\u094d\u0926\u0940") == ("\u0939\u093f", "\u0928\u094d", "\u0926\u0940")


def test_a_completed_lexicon_keeps_all_pronunciations_and_says_where_each_is_from(tmp_path) -> None:
    found = complete(["THE", "cat", "DON\u2019T", "DOG", "7", "THE"], BASE, EspeakGuess(ARPABET))
    assert [(word, " ".join(phones), how) for word, phones, how in found.origins] == [
        ("DOG", "D AA G", "guessed by espeak-ng"),
        ("DON\u2019T", "D OW N T", "seen as don't"),
        ("THE", "DH AH", "seen"),
        ("THE", "DH IY", "seen"),
        ("cat", "K AE T", "seen as CAT"),
    ]
    assert list(found.refused) == ["7"]
    found.write(tmp_path)
    assert read_lexicon(tmp_path / "lexicon.txt") == found.entries
    rows = (tmp_path / "pronunciations.tsv").read_text(encoding="utf-8").splitlines()
    assert rows[:2] == ["word\tpronunciation\thow", "DOG\tD AA G\tguessed by espeak-ng"]
    assert (tmp_path / "refused.tsv").read_text(encoding="utf-8").splitlines()[1].startswith("7\t'7' holds the digit")
    assert {word for word, _ in completed_base(["DOG"], BASE, GraphemeGuess()).entries} == {
        "THE",
        "don't",
        "CAT",
        "DOG",
    }
    assert complete(["DOG"], BASE).refused == {"DOG": "not in the lexicon"}


def test_all_words_of_another_case_give_their_pronunciations() -> None:
    base = [("Polish", ("P", "OW")), ("polish", ("P", "AA")), ("polish", ("P", "OW")), ("Straße", ("SH", "T"))]
    found = complete(["POLISH", "STRASSE"], base)
    assert sorted((word, phones) for word, phones, _ in found.origins) == [
        ("POLISH", ("P", "AA")),
        ("POLISH", ("P", "OW")),
        ("STRASSE", ("SH", "T")),
    ]
    assert {how for _, _, how in found.origins} == {"seen as Polish", "seen as polish", "seen as Straße"}


def test_stress_is_that_of_the_base() -> None:
    stressed = [("CAT", ("K", "AE1", "T"))]
    assert has_stress(stressed)
    assert not has_stress(BASE)
    assert phone_set(stressed) == {"K", "T", "AE0", "AE1", "AE2"}
