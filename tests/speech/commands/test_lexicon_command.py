"""`murmur lexicon`: seen, guessed and refused words; several pronunciations; stress; errors that name the phone."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.speech.corpus.kaldi_dir import write_table

CMUDICT = """\
;;; a comment
a AH0
a(2) EY1
cat K AE1 T
cats K AE1 T S # plural
the DH AH0
the(2) DH IY0
over OW1 V ER0
judge JH AH1 JH
noise N OY1 Z
"""


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["lexicon", *map(str, words)], env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "train"
    folder.mkdir()
    write_table(folder / "text", {"u1": "THE CATS A", "u2": "THE COVER 7 <unk>", "u3": ""})
    (tmp_path / "cmudict.dict").write_text(CMUDICT, encoding="utf-8")
    return folder


def test_transcripts_with_a_base_in_lower_case(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader", reason="the extra synth is not installed")
    code, said = run(data, "--base", tmp_path / "cmudict.dict", "--guess", "espeak", "--out", tmp_path / "out")
    assert code == 0, said
    lines = (tmp_path / "out" / "lexicon.txt").read_text(encoding="utf-8").splitlines()
    assert lines == ["A AH0", "A EY1", "CATS K AE1 T S", "COVER K AH1 V ER0", "THE DH AH0", "THE DH IY0"]
    assert "4 words, 6 pronunciations" in said
    assert "3 seen" in said
    assert "1 guessed by espeak-ng" in said
    assert "2 of 6 words are left out: 7: " in said
    assert "28.57 % of the running words are left out, see refused.tsv" in said  # 2 of 7
    refused = (tmp_path / "out" / "refused.tsv").read_text(encoding="utf-8")
    assert refused.startswith("word\twhy\n7\t'7' holds the digit '7'")


def test_stress_is_dropped_where_that_is_wanted(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader", reason="the extra synth is not installed")
    options = ("--stress", "drop", "--guess", "espeak", "--whole")
    code, said = run(data, "--base", tmp_path / "cmudict.dict", *options, "--out", tmp_path / "out")
    assert code == 0, said
    lines = (tmp_path / "out" / "lexicon.txt").read_text(encoding="utf-8").splitlines()
    assert "COVER K AH V ER" in lines
    assert "noise N OY Z" in lines


def test_phones_that_the_base_lacks_are_named(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader", reason="the extra synth is not installed")
    write_table(data / "text", {"u1": "THE SHEEP"})
    code, said = run(data, "--base", tmp_path / "cmudict.dict", "--guess", "espeak", "--out", tmp_path / "out")
    assert code == 1
    assert "the phone set lacks SH:" in said
    assert "'SHEEP' is guessed as SH IY1 P, but the base lexicon has no phone 'SH'" in said
    assert not (tmp_path / "out").exists()
    mapped = tmp_path / "map"
    mapped.write_text("\u0283 JH\ni\u02d0 OW1\np T\n", encoding="utf-8")
    options = ("--guess", "espeak", "--map", mapped, "--out", tmp_path / "out")
    code, said = run(data, "--base", tmp_path / "cmudict.dict", *options)
    assert code == 0, said
    assert "SHEEP JH OW1 T" in (tmp_path / "out" / "lexicon.txt").read_text(encoding="utf-8")


def test_letters_as_phones(data: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("don\u2019t na\u00efve\n3rd x-ray\n", encoding="utf-8")
    code, said = run(data, words, "--guess", "graphemes", "--out", tmp_path / "out")
    assert code == 0, said
    lines = (tmp_path / "out" / "lexicon.txt").read_text(encoding="utf-8").splitlines()
    assert {"CATS c a t s", "don\u2019t d o n t", "na\u00efve n a \u00ef v e", "x-ray x r a y"} <= set(lines)
    assert not any(line.startswith("3rd") for line in lines)
    code, _ = run(words, "--guess", "graphemes", "--digits", "read", "--out", tmp_path / "out")
    assert code == 0
    assert "3rd 3 r d" in (tmp_path / "out" / "lexicon.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "without --base there are no pronunciations to look up or keep"),
        (("--guess", "graphemes", "--whole"), "without --base there are no pronunciations"),
        (("--guess", "graphemes", "--voice", "de"), "--voice and --map are for --guess espeak"),
        (("--guess", "espeak", "--voice", "de"), "the sounds of voice 'de' need a phone map"),
        (("--guess", "graphemes", "--stress", "drop"), "--stress drop changes the phones of --base"),
        (("--base", "gone", "--digits", "read"), "--digits is about words that are guessed"),
        (("--base", "gone"), "gone"),
    ],
)
def test_mistakes(options: tuple[str, ...], message: str, data: Path, tmp_path: Path) -> None:
    code, said = run(data, *options, "--out", tmp_path / "out")
    assert code == 1
    assert message in said


def test_a_text_without_any_word_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("66 77\n")
    code, said = run(tmp_path / "words", "--guess", "graphemes", "--out", tmp_path / "out")
    assert code == 1
    assert "none of the 2 words has a pronunciation" in said


def test_a_base_is_never_overwritten(data: Path, tmp_path: Path) -> None:
    (tmp_path / "lexicon.txt").write_text(CMUDICT, encoding="utf-8")
    code, said = run(data, "--base", tmp_path / "lexicon.txt", "--out", tmp_path)
    assert code == 1
    assert "is the base and would be overwritten" in said
    assert (tmp_path / "lexicon.txt").read_text(encoding="utf-8") == CMUDICT


def test_a_lexicon_that_was_changed_by_hand_is_not_overwritten(data: Path, tmp_path: Path) -> None:
    words, out = (data, "--guess", "graphemes", "--out", tmp_path / "out"), tmp_path / "out" / "lexicon.txt"
    assert run(*words)[0] == run(*words)[0] == 0  # what the command wrote itself may be replaced
    first = out.read_text(encoding="utf-8")
    out.write_text(first.replace("COVER ", "COVER K "), encoding="utf-8")
    code, said = run(*words)
    assert code == 1
    assert "was changed by hand" in said
    assert "COVER K " in out.read_text(encoding="utf-8")
    assert run(*words, "--force")[0] == 0
    assert out.read_text(encoding="utf-8") == first
    out.write_text("COVER\n", encoding="utf-8")  # no lexicon any more
    assert run(*words)[0] == 1
    assert run(*words, "--force")[0] == 0
    (tmp_path / "out" / "pronunciations.tsv").unlink()
    assert run(*words)[0] == 1


def test_words_of_prose_are_those_of_transcripts(data: Path, tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("The dog's cats.\n", encoding="utf-8")
    code, said = run(data, tmp_path / "prose.txt", "--writing", "english", "--guess", "graphemes", "--out", tmp_path)
    assert code == 0, said
    words = [line.split()[0] for line in (tmp_path / "lexicon.txt").read_text(encoding="utf-8").splitlines()]
    assert words == ["A", "CATS", "COVER", "DOG'S", "THE"]


def test_a_text_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "lexicon.txt").write_text("one two\n")
    code, said = run(tmp_path / "lexicon.txt", "--guess", "graphemes", "--out", tmp_path)
    assert code == 1
    assert "is read too and would be overwritten" in said
    assert (tmp_path / "lexicon.txt").read_text() == "one two\n"


def test_refused_words_count_in_any_unicode_form(tmp_path: Path) -> None:
    (tmp_path / "cmudict.dict").write_text(CMUDICT, encoding="utf-8")
    for form in ("NFC", "NFD"):
        (tmp_path / "text").write_text(unicodedata.normalize(form, "the caf\u00e9 the caf\u00e9\n"), encoding="utf-8")
        code, said = run(tmp_path / "text", "--base", tmp_path / "cmudict.dict", "--out", tmp_path / form)
        assert code == 0, said
        assert "1 of 2 words is left out: caf\u00e9: not in the lexicon\n  50.00 % of the running words" in said
