"""Dictionaries of other formats: probabilities and output symbols never become phones, phones that are numbers stay."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from murmur.speech.lexicon.lexicon import Entry, listed_words, read_lexicon

THE = [("the", ("DH", "AH")), ("lamp", ("L", "AE"))]


def read(tmp_path: Path, text: str, phones: tuple[str, ...] = ()) -> list[Entry]:
    (tmp_path / "lex").write_text(text, encoding="utf-8")
    return read_lexicon(tmp_path / "lex", phones)


@pytest.mark.parametrize(
    "text",
    [
        "the 0.8 DH AH\nlamp 1.0 L AE\n",  # lexiconp.txt
        "the\t0.8\tDH AH\nlamp\t1\tL AE\n",  # a probability of 1 as a whole number
        "the 0.8 0.2 1.1 0.93 DH AH\nlamp 1 0.2 1 1e-05 L AE\n",  # lexiconp_silprob.txt, MFA
        "the 0.99 0.2 1.1 0.93 DH AH\nlamp 0.5 L AE\n",  # MFA, with some probabilities alone
        "the 0.8 DH AH\nlamp L AE\n",  # a probability where it is not 1
        "the 0,8 DH AH\nlamp 1,0 L AE\n",
        "the -0.22 DH AH\nlamp -1.5e+00 L AE\n",  # logarithms
        "the [the] DH AH\nlamp [] L AE\n",  # HTK
        "the [THE] 0.8 DH AH\nlamp [LAMP] 1.0 L AE\n",
        "the @-0.22 [the] DH AH\nlamp @-1 {lamp} L AE\n",  # Julius
        "the [the] @-0.22 DH AH\nlamp @-1 L AE\n",
    ],
)
def test_figures_and_output_symbols_are_left_out_and_told(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read(tmp_path, text) == THE
    (told,) = caplog.messages
    assert f"{tmp_path / 'lex'}: output symbols and probabilities of " in told
    assert " of 2 lines are not used, such as 'the " in told


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("deux d 2\neux 2\n9 9\n", [("deux", ("d", "2")), ("eux", ("2",)), ("9", ("9",))]),  # X-SAMPA
        ("euro 2 R o\ndeux d 2\n", [("euro", ("2", "R", "o")), ("deux", ("d", "2"))]),
        ("ma m a 1\nma m a 4 1\n", [("ma", ("m", "a", "1")), ("ma", ("m", "a", "4", "1"))]),  # tones
        ("a 17 23\nb 4 99\n", [("a", ("17", "23")), ("b", ("4", "99"))]),  # units of clusters
        ("[x] [y] [z]\n", [("[x]", ("[y]", "[z]"))]),  # phones in brackets
        (";;; one\n# two\n## three\nA(2) a # four\n\n", [("A", ("a",))]),
    ],
)
def test_phones_that_are_numbers_stay(
    text: str, entries: list[Entry], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read(tmp_path, text) == entries
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("the 1 DH AH\nlamp L AE\n", "lex:1: is 1 in 'the 1 DH AH' a phone or a figure"),
        ("the 1 DH AH\nlamp 1 L AE\n", "lex:1: is 1 in"),
        ("lamp L AE\nthe 3 DH AH\n", "lex:2: is 3 in"),
        ("the 0.8 DH AH\nlamp 1 L AE\nso S OW\n", "lex:2: is 1 in"),
        ("the DH 0.8 AH\n", "lex:1: 'the' has the number 0.8 among its phones"),
        ("so S OW\nthe DH AH 0.8\n", "lex:2: 'the' has the number 0.8"),
        ("so S OW\nthe 0.8\n", "lex:2: 'the' has no phones"),
        ('("the" nil (((dh ax) 0)))\n', "lex:1: a dictionary of Festival"),
        ('MNCL\n( "the" n (dh ax))\n', "lex:2: a dictionary of Festival"),
        ('<?xml version="1.0"?>\n', "lex:1: a dictionary of PLS"),
        ("new york\tN UW\nold\tOW L D\n", "the word 'new york' holds a space"),
    ],
)
def test_what_may_be_a_phone_or_a_figure_is_refused_with_its_line(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refused:
        read(tmp_path, text)
    assert says in str(refused.value)


def test_phones_of_the_system_settle_what_a_number_is(tmp_path: Path) -> None:
    assert read(tmp_path, "euro 2 R o\n", ("2", "R", "o")) == [("euro", ("2", "R", "o"))]
    with pytest.raises(ValueError, match="is 2 in 'euro 2 R o' a phone or a figure"):
        read(tmp_path, "euro 2 R o\n")


def test_words_of_a_list(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert listed_words(["the 0.8 DH", "# no", ";;; no", "A(2) a", "<s> 1", "## no"]) == ["the", "A"]
