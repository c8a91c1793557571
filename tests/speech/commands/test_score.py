"""`murmur score`: Kaldi's lines, intervals, speakers, errors in a file, comparison."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app

pytest.importorskip("kaldialign", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.report.error_rate import compare, interval
from murmur.speech.corpus.kaldi_dir import write_table
from murmur.speech.decoding.wer import score_utterances

REFERENCES = {f"s{n % 9}-{n}": "a b c d" for n in range(27)}
FIRST = {u: ("a b c d" if n % 3 else "a x c") for n, u in enumerate(REFERENCES)}
SECOND = {u: ("a b c d" if n % 5 else "a b c d e") for n, u in enumerate(REFERENCES)}


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["score", *map(str, words)], env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_table(tmp_path / "text", REFERENCES)
    write_table(tmp_path / "utt2spk", {u: u.partition("-")[0] for u in REFERENCES})
    write_table(tmp_path / "first", FIRST)
    write_table(tmp_path / "second", SECOND)
    return tmp_path


def test_line_and_interval(data: Path) -> None:
    code, said = run(data / "text", data / "first")
    spread = interval(score_utterances(REFERENCES, FIRST))
    wanted = "%WER 16.67 [ 18 / 108, 0 ins, 9 del, 9 sub ]"
    assert (code, said) == (0, f"{wanted}; 95 % interval {spread.low:.2f}-{spread.high:.2f} over utterances\n")


def test_a_directory_gives_speakers(data: Path) -> None:
    code, said = run(data, data / "first", "--errors", data / "errors.txt")
    assert code == 0, said
    assert "over speakers" in said.splitlines()[0]
    assert [line.split()[0] for line in said.splitlines()[1:]] == [f"s{n}" for n in range(9)]
    assert "s0  %WER 50.00 [ 6 / 12, 0 ins, 3 del, 3 sub ]" in said
    assert "     9 b -> x" in (data / "errors.txt").read_text()


def test_time_marked_files(tmp_path: Path) -> None:
    (tmp_path / "ref.stm").write_text(
        ';; LABEL "SWB" "Switchboard" "calls"\nf A s1 0 5 <SWB> GOING TO go\nf A s2 5 9 <SWB> yes (uh)\n'
    )
    (tmp_path / "hyp.ctm").write_text("f A 1 .2 gonna\nf A 2 .2 go\nf A 6 .2 no\n")
    (tmp_path / "map.glm").write_text(";; x\n[GOING TO] => {[GOING TO] / [GONNA]} / [ ] __ [ ]\n")
    files = (tmp_path / "ref.stm", tmp_path / "hyp.ctm")
    code, said = run(*files)
    assert (code, said.splitlines()[0][:45]) == (0, "%WER 60.00 [ 3 / 5, 0 ins, 1 del, 2 sub ]; 95")
    code, said = run(*files, "--glm", tmp_path / "map.glm", "--errors", tmp_path / "errors.txt")
    assert code == 0, said
    assert said.splitlines()[1:] == [
        "Switchboard: %WER 25.00 [ 1 / 4, 0 ins, 0 del, 1 sub ]",
        "s1  %WER 0.00 [ 0 / 2, 0 ins, 0 del, 0 sub ]",
        "s2  %WER 50.00 [ 1 / 2, 0 ins, 0 del, 1 sub ]",
    ]
    assert "hyp  no" in (tmp_path / "errors.txt").read_text()
    code, said = run(*files, files[1])
    assert code == 0
    assert "second - first: +0.00 % absolute" in said


def test_time_marked_files_are_asked_for_as_such(data: Path, tmp_path: Path) -> None:
    (tmp_path / "ref.stm").write_text("f A s1 0 5 a\n")
    (tmp_path / "hyp.ctm").write_text("f A 1 b a\n")
    for words, what in (
        ((tmp_path / "ref.stm", tmp_path / "hyp.ctm"), "hyp.ctm:1: not a time"),
        ((tmp_path / "ref.stm", tmp_path / "hyp.ctm", "--unit", "char"), "scored in words"),
        ((data / "text", data / "first", "--glm", tmp_path / "ref.stm"), "--glm needs an STM"),
        ((tmp_path / "ref.stm", tmp_path / "hyp.ctm", "--glm", tmp_path / "none"), "--glm"),
    ):
        code, said = run(*words)
        assert code != 0
        assert what in said


def test_speakers_of_other_utterances_do_not_count(data: Path) -> None:
    write_table(data / "utt2spk", {**dict.fromkeys(REFERENCES, "only"), **{f"other{n}": f"s{n}" for n in range(9)}})
    code, said = run(data, data / "text")
    assert code == 0, said
    assert "over utterances" in said.splitlines()[0]
    write_table(data / "utt2spk", {min(REFERENCES): "only"})
    code, said = run(data, data / "text")
    assert code == 1
    assert f"names no speaker of {sorted(REFERENCES)[1]!r}" in said


def test_a_report_never_takes_the_place_of_an_input(data: Path, tmp_path: Path) -> None:
    before = (data / "text").read_bytes()
    for words in ((data, data / "text"), (data / "text", data / "text")):
        code, said = run(*words, "--errors", data / "text")
        assert code == 1
        assert "is read too and would be overwritten" in said
    (tmp_path / "r-2.txt").write_bytes(before)
    code, said = run(data, data / "text", tmp_path / "r-2.txt", "--errors", tmp_path / "r.txt")
    assert code == 1
    assert "r-2.txt is read too" in said
    assert (tmp_path / "r-2.txt").read_bytes() == (data / "text").read_bytes() == before


def test_a_byte_order_mark_is_no_part_of_a_name(data: Path, tmp_path: Path) -> None:
    (tmp_path / "hyp").write_bytes(b"\xef\xbb\xbf" + (data / "text").read_bytes())
    code, said = run(data, tmp_path / "hyp")
    assert code == 0, said
    assert said.startswith("%WER 0.00")


def test_segments_that_begin_together_all_count(tmp_path: Path) -> None:
    (tmp_path / "r.stm").write_text("meet 1 ann 0.00 5.00 one two three four\nmeet 1 bob 0.00 5.00 five six seven\n")
    (tmp_path / "h.ctm").write_text("meet 1 0.10 0.20 one\n")
    code, said = run(tmp_path / "r.stm", tmp_path / "h.ctm")
    assert code == 0, said
    assert "[ 6 / 7, 0 ins, 6 del, 0 sub ]" in said.splitlines()[0]
    assert "ann" in said
    assert "bob" in said


def test_few_speakers_are_not_drawn(data: Path) -> None:
    write_table(data / "utt2spk", dict.fromkeys(REFERENCES, "only"))
    code, said = run(data, data / "first")
    assert code == 0
    assert "over utterances" in said
    assert "only  %WER 16.67" in said


def test_two_systems_are_compared(data: Path) -> None:
    code, said = run(data / "text", data / "first", data / "second", "--errors", data / "errors.txt")
    assert code == 0, said
    change = compare(score_utterances(REFERENCES, FIRST), score_utterances(REFERENCES, SECOND)).difference
    line = f"second - first: {change.value:+.2f} % absolute, 95 % interval {change.low:+.2f} to {change.high:+.2f}"
    assert line in said
    assert change.value < 0
    assert (data / "errors-1.txt").is_file()
    assert (data / "errors-2.txt").is_file()


def test_characters(data: Path) -> None:
    code, said = run(data / "text", data / "second", "--unit", "char")
    assert code == 0
    assert said.startswith("%CER 6.35 [ 12 / 189, 12 ins, 0 del, 0 sub ]")
    code, said = run(data / "text", data / "first", data / "second", "--unit", "char")
    assert code == 0, said
    rates = [score_utterances(REFERENCES, each, "char") for each in (FIRST, SECOND)]
    assert f"second - first: {compare(*rates).difference.value:+.2f} % absolute" in said


def test_mistakes(data: Path) -> None:
    assert run(data / "text", data / "nothing") == (
        1,
        f"murmur: there is no file {data / 'nothing'}: name a file of lines `utterance words...`,"
        " such as Kaldi's text\n",
    )
    write_table(data / "short", {u: t for u, t in FIRST.items() if u != "s3-3"})
    code, said = run(data / "text", data / "short")
    assert code == 1
    assert "no hypothesis for 1 utterance: s3-3" in said
    code, said = run(data / "text", data / "first", data / "first", data / "first")
    assert code == 1
    assert "one or two files of hypotheses can be scored, got 3" in said


def test_recordings_without_a_word_are_named(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    (data / "ref.stm").write_text("".join(f"f{n} A s1 0 5 yes\n" for n in range(5)))
    (data / "hyp.ctm").write_text("F0 A 1 0.1 yes\n")
    code, said = run(data / "ref.stm", data / "hyp.ctm")
    assert code == 0
    assert f"{data / 'hyp.ctm'} has no word of 4 of 5 recordings: f1 a, f2 a, f3 a, ..." in caplog.text
    assert "%WER 80.00 [ 4 / 5, 0 ins, 4 del, 0 sub ]" in said


def test_a_third_column_of_speakers_is_refused(data: Path) -> None:
    (data / "speakers").write_text("s1-1 s1 a\n")
    code, said = run(data / "text", data / "first", "--speakers", data / "speakers")
    assert (code, "speakers:1: 's1-1' has 3 columns, not two: write UTTERANCE SPEAKER" in said) == (1, True)


def test_gzip_is_read_whatever_the_name_and_other_formats_are_called_that(data: Path) -> None:
    plain = (data / "first").read_bytes()
    (data / "ref.stm").write_text("f A s1 0 5 yes\n")
    (data / "hyp.ctm").write_bytes(gzip.compress(b"f A 1 0.1 yes\n"))
    assert "%WER 0.00 [ 0 / 1," in run(data / "ref.stm", data / "hyp.ctm")[1]
    for name, content in (("first.gz", gzip.compress(plain)), ("packed", gzip.compress(plain)), ("plain.gz", plain)):
        (data / name).write_bytes(content)
        assert run(data / "text", data / name) == run(data / "text", data / "first")
    (data / "first.xz").write_bytes(lzma.compress(plain))
    told = f"murmur: {data / 'first.xz'} is compressed (xz): unpack it, e.g. with unxz\n"
    for reference in (data / "text", data / "ref.stm"):
        assert run(reference, data / "first.xz") == (1, told)


def test_a_negative_seed_is_named(data: Path) -> None:
    code, said = run(data / "text", data / "first", "--seed", -1)
    assert code == 2
    assert "--seed" in said
