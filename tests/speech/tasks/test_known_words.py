"""Words of decoding against those of a language model and of held-out transcripts."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.core.errors import SettingError
from murmur.speech.language_model.arpa import read_arpa, read_unigrams, write_arpa
from murmur.speech.language_model.kneser_ney import KneserNey
from murmur.speech.tasks.vocabulary import check_known, decoding_words

TEXT = ["A B C", "B A", "A A B", "d B"]


@pytest.fixture
def lexicon(tmp_path: Path) -> Path:
    path = tmp_path / "lexicon.txt"
    path.write_text("A a\nB b\nD d\nE e\n")
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "lm.arpa.gz"
    write_arpa(KneserNey(2).train(TEXT).model, path)
    return path


def test_unigrams_are_those_of_the_whole_model(model: Path) -> None:
    whole = read_arpa(model)
    assert read_unigrams(model) == dict(zip(whole.words, whole.orders[0].log10_prob.tolist(), strict=True))


def test_words_that_the_lexicon_lacks_are_named_with_their_share(
    lexicon: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert decoding_words(lexicon, model) == ["A", "B"]
    chances = {w: 10**p for w, p in read_unigrams(model).items() if w in {"A", "B", "C", "d"}}
    share = 100 * (chances["C"] + chances["d"]) / sum(chances.values())
    assert "2 of 4 words of the language model lm.arpa.gz cannot be recognised" in caplog.text
    assert "(the lexicon lacks them): C, d;" in caplog.text
    assert f"{share:.1f} % of the probability" in caplog.text
    caplog.clear()
    assert decoding_words(lexicon, None) == ["A", "B", "D", "E"]
    lexicon.write_text("A a\nB b\nC c\nd d\n")
    assert decoding_words(lexicon, model) == ["A", "B", "C", "d"]
    assert not caplog.text


def test_transcripts_outside_the_vocabulary_are_counted_and_refused_if_none_is_inside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_known({"u": "A B", "v": "B"}, ["A", "B"], "dev")
    assert not caplog.text
    check_known({"u": "A b", "v": "b c"}, ["A", "B"], "dev")
    assert "3 of 4 words of dev are not in the vocabulary: b, c" in caplog.text
    with pytest.raises(SettingError, match=r"dev: none of its 3 words .*upper and lower case"):
        check_known({"u": "a b", "v": "b"}, ["A", "B"], "dev")
    check_known({}, ["A"], "dev")
