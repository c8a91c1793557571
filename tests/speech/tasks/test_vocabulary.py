"""Pronunciations of the user's words, and the message if there is none."""

from __future__ import annotations

import logging
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.core.errors import SettingError
from murmur.speech.ctc import Units
from murmur.speech.lexicon.lexicon import make_lang
from murmur.speech.lexicon.spelling import spell
from murmur.speech.tasks import vocabulary as module
from murmur.speech.tasks.vocabulary import Vocabulary

BASE = [("SEVEN", ("S", "EH", "V", "AH", "N")), ("TEN", ("T", "EH", "N")), ("OH", ("OW",))]
PHONES = make_lang(BASE).phones
SPELLED = [(word, spell(word)) for word in ("seven", "ten", "oh")]
needs_espeak = pytest.mark.skipif(find_spec("espeakng_loader") is None, reason="the extra synth is not installed")


def own(tmp_path: Path, lexicon: str | None = None, guess: module.WhichGuess = "auto") -> Vocabulary:
    (tmp_path / "words.txt").write_text("TEN\n")
    path = None
    if lexicon is not None:
        path = tmp_path / "mine.txt"
        path.write_text(lexicon)
    return Vocabulary("words", tmp_path / "words.txt", path, guess)


def test_looked_up_in_ones_own_lexicon_first_and_in_any_case(tmp_path: Path) -> None:
    found = own(tmp_path, "TEN T AH N\nTEN T EH\nunused X\n").pronounced(["TEN", "Seven"], BASE, PHONES)
    assert found == [("Seven", BASE[0][1]), ("TEN", ("T", "AH", "N")), ("TEN", ("T", "EH"))]


@pytest.mark.parametrize(
    ("lexicon", "says"),
    [
        (
            "NEW T X N\n",
            "mine.txt has phones that the acoustic model lacks: X (in NEW); it knows AH, EH, N, OW, S, T, V",
        ),
        ("NEW T EH1 N\n", "EH1 (in NEW); it knows AH, EH, N, OW, S, T, V; take the stress digits off"),
    ],
)
def test_phones_of_no_state_are_named(tmp_path: Path, lexicon: str, says: str) -> None:
    with pytest.raises(SettingError, match=re.escape(says)):
        own(tmp_path, lexicon).pronounced(["NEW"], BASE, PHONES)


@needs_espeak
def test_guesses_are_in_the_phones_of_the_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert own(tmp_path).pronounced(["NET"], BASE, PHONES) == [("NET", ("N", "EH", "T"))]
    assert "1 word guessed: NET N EH T" in caplog.text
    with pytest.raises(ValueError, match="'LAMP' is guessed as"):
        own(tmp_path).pronounced(["LAMP"], BASE, PHONES)
    with pytest.raises(SettingError, match=r"1 word can be neither looked up nor guessed: .*\n.*7: .*digit"):
        own(tmp_path).pronounced(["7"], BASE, PHONES)


@needs_espeak
def test_stress_that_the_model_lacks_becomes_one_that_it_has(tmp_path: Path) -> None:
    base = [("TEN", ("T", "EH0", "N")), ("SO", ("S", "OW1"))]
    found = own(tmp_path).pronounced(["NET", "SNOW"], base, make_lang(base).phones)
    assert found == [("NET", ("N", "EH0", "T")), ("SNOW", ("S", "N", "OW1"))]


def test_letters_are_the_guess_of_a_spelled_lexicon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    phones = make_lang(SPELLED).phones
    assert own(tmp_path).pronounced(["nose", "Ten"], SPELLED, phones) == [
        ("Ten", ("t", "e", "n")),
        ("nose", tuple("nose")),
    ]
    assert "1 word spelled: nose n o s e" in caplog.text
    with pytest.raises(ValueError, match="no phone 'x'"):
        own(tmp_path).pronounced(["next"], SPELLED, phones)


def test_without_a_guess_the_words_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"W{chr(65 + n // 10)}{chr(65 + n % 10)}" for n in range(50)]
    with pytest.raises(SettingError) as refused:
        own(tmp_path, guess="none").pronounced([*words, "TEN"], BASE, PHONES)
    said = str(refused.value)
    assert f"{tmp_path / 'words.txt'}: 50 words not in the model's lexicon: WAA, WAB, " in said
    assert "WDJ and 10 more; give lines" in said
    assert "by --lexicon FILE (phones: AH EH N OW S T V), or let them be guessed (--guess auto)" in said
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"nor in .*mine\.txt: NEW; .* pip install 'murmur-asr\[synth\]'"):
        own(tmp_path, "TEN T EH N\n").pronounced(["NEW"], BASE, PHONES)
    foreign = [("JA", ("j", "aa"))]
    with pytest.raises(SettingError, match=r"NEIN; give lines .* \(phones: aa j\)$"):
        own(tmp_path).pronounced(["NEIN"], foreign, make_lang(foreign).phones)


@pytest.mark.parametrize(
    ("kind", "symbols", "words", "wanted"),
    [
        ("char", " ENT", ["TEN", "ten"], [("TEN", ("T", "E", "N")), ("ten", ("T", "E", "N"))]),
        ("grapheme", ("\u2581t", "e", "n"), ["TEN"], [("TEN", ("\u2581t", "e", "n"))]),
        ("word", ("TEN",), ["Ten"], [("Ten", ("TEN",))]),
    ],
)
def test_words_in_the_units_of_ctc(tmp_path: Path, kind, symbols, words, wanted) -> None:
    assert own(tmp_path).spelled(words, Units(kind, tuple(symbols))) == wanted
    with pytest.raises(SettingError, match=f"the network's {kind}s write 1 of 2 words in no case: ONE"):
        own(tmp_path).spelled([words[0], "ONE"], Units(kind, tuple(symbols)))
    with pytest.raises(SettingError, match="words need no phones"):
        own(tmp_path, "TEN T\n").spelled(words, Units(kind, tuple(symbols)))
