"""Alignments of the worst utterances, paired differences, recordings."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.folders import random_rows, write_run

pytest.importorskip("matplotlib", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")
pytest.importorskip("jinja2", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")

from murmur.report import recognised
from murmur.report.page import write_report
from murmur.report.read import read_run
from murmur.report.recognised import RecognisedUtterance, align, embed, find_audio, read_recognised, worst
from murmur.report.verdict import difference, headline, notes, ranking

WORDS = st.lists(st.sampled_from("abc"), max_size=7)


def fewest(said: tuple[str, ...], heard: tuple[str, ...]) -> int:
    """The least number of edits, by trying all first moves."""

    @cache
    def rest(i: int, j: int) -> int:
        if i == len(said) or j == len(heard):
            return len(said) - i + len(heard) - j
        return min(rest(i + 1, j + 1) + (said[i] != heard[j]), rest(i + 1, j) + 1, rest(i, j + 1) + 1)

    return rest(0, 0)


@settings(max_examples=200, deadline=None)
@given(WORDS, WORDS)
def test_alignments_have_the_fewest_errors(said: list[str], heard: list[str]) -> None:
    pairs = align(said, heard)
    assert [pair.said for pair in pairs if pair.said] == said
    assert [pair.heard for pair in pairs if pair.heard] == heard
    assert sum(pair.kind != "" for pair in pairs) == fewest(tuple(said), tuple(heard))
    kinds = {(True, True): ("", "sub"), (True, False): ("del",), (False, True): ("ins",)}
    for pair in pairs:
        assert pair.kind in kinds[bool(pair.said), bool(pair.heard)]
        assert (pair.kind == "") == (pair.said == pair.heard)


def utterances(errors: list[int], words: int = 10, speakers: int = 20) -> list[RecognisedUtterance]:
    return [RecognisedUtterance(f"u{i:03d}", f"s{i % speakers}", f"r{i}", "h", n, words) for i, n in enumerate(errors)]


def test_a_difference_is_certain_where_every_speaker_shows_it() -> None:
    good, bad = utterances([1] * 60), utterances([2] * 60)
    found = difference(good, bad)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((10.0, 10.0, 10.0))
    same = difference(good, good)
    assert same is not None
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    one = difference(good, utterances([1] * 59 + [3]))
    assert one is not None
    assert one.low <= 0 < one.value


def test_differences_need_the_same_utterances() -> None:
    some = utterances([1, 2, 3])
    assert difference(some, some[:2]) is None
    assert difference(some, [*some[:2], RecognisedUtterance("u002", "s2", "another text", "h", 1, 10)]) is None
    assert difference([], []) is None
    assert difference(utterances([0], words=0), utterances([0], words=0)) is None


def test_the_worst_come_first_and_those_without_errors_not_at_all() -> None:
    shown = worst(utterances([0, 5, 2, 0, 5]), {})
    assert [each.utterance.name for each in shown] == ["u001", "u004", "u002"]


def test_recordings_are_embedded_where_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("u000.wav", 10), ("u001.flac", 30), ("u002.wav", 31), ("u003.txt", 5), ("u004.wav", 29)):
        (tmp_path / name).write_bytes(b"x" * size)
    monkeypatch.setattr(recognised, "LARGEST_FILE", 30)
    monkeypatch.setattr(recognised, "LARGEST_TOGETHER", 50)
    found = find_audio([tmp_path], ["u000", "u001", "u002", "u003", "u004"])
    assert sorted(found) == ["u000", "u001", "u002", "u004"]
    shown = {each.utterance.name: each.audio for each in worst(utterances([9, 8, 7, 6, 5]), found)}
    assert shown["u000"] == f"data:audio/wav;base64,{base64.b64encode(b'x' * 10).decode()}"
    assert shown["u001"].startswith("data:audio/flac;base64,")
    assert [shown[name] for name in ("u002", "u003", "u004")] == ["", "", ""]  # too large, no sound, no room left
    assert embed(tmp_path / "gone.wav", 100) == ("", 0)


def test_commands_of_wav_scp_are_not_run(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"x")
    scp = tmp_path / "wav.scp"
    scp.write_text(f"u000 {tmp_path}/a.wav\nu001 touch {tmp_path}/ran |\nother {tmp_path}/a.wav\n")
    assert find_audio([scp], ["u000", "u001"]) == {"u000": tmp_path / "a.wav"}
    assert not (tmp_path / "ran").exists()
    with pytest.raises(FileNotFoundError, match="no such folder or wav"):
        find_audio([tmp_path / "none"], ["u000"])


def test_relative_recordings_of_wav_scp_are_below_its_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy of a set has the recordings beside data/, wherever the report is made."""
    for place in ("set/wav", "set/data/test", "elsewhere"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "set/wav/a.wav").write_bytes(b"x")
    (tmp_path / "elsewhere/b.wav").write_bytes(b"y")
    scp = tmp_path / "set/data/test/wav.scp"
    scp.write_text("u000 wav/a.wav\nu001 b.wav\nu002 gone.wav\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = find_audio([scp], ["u000", "u001", "u002"])
    assert {name: path.resolve() for name, path in found.items() if path.is_file()} == {
        "u000": tmp_path / "set/wav/a.wav",
        "u001": tmp_path / "elsewhere/b.wav",
    }
    run = write_run(tmp_path / "run", random_rows(0, 1, 20), 1)
    told = vars(utterances([1])[0]) | {"utterance": "u000"}
    (run / "recognised.jsonl").write_text(json.dumps(told) + "\n")
    assert "data:audio/wav" in write_report([run], tmp_path / "r.html", [scp]).read_text()
    assert not caplog.messages
    (tmp_path / "set/wav/a.wav").unlink()
    assert "data:audio/wav" not in write_report([run], tmp_path / "r.html", [scp]).read_text()
    assert "no recording of the 1 test utterances is there" in caplog.text


def test_the_page_shows_what_recognised_jsonl_tells(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", random_rows(0, 1, 20), 1)
    rows = [
        {
            "utterance": "u1",
            "speaker": "s",
            "reference": "five six",
            "hypothesis": "five nine six",
            "errors": 1,
            "words": 2,
        },
        {"utterance": "u2", "speaker": "s", "reference": "one", "hypothesis": "one", "errors": 0, "words": 1},
    ]
    (run / "recognised.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '[]\n{"utterance": "cut')
    page = write_report([run], tmp_path / "r.html").read_text()
    assert "1 error in 3 words; errors in 1 of 2 utterances." in page
    assert '<li class="ins"><span>\u2013</span><span>nine</span><small>I</small></li>' in page
    assert "recognised.jsonl: 1 damaged line left out, the first is line 3" in page
    assert "recognised.jsonl: the last line is unfinished" in page
    problems: list[str] = []
    assert [u.name for u in read_recognised(run / "recognised.jsonl", problems)] == ["u1", "u2"]


@pytest.mark.parametrize(
    ("more", "verdict"), [([1] * 60, "Winner: good"), ([1] * 59 + [2], "No difference beyond chance")]
)
def test_pairs_decide_where_there_are_any(more: list[int], verdict: str, tmp_path: Path) -> None:
    runs = []
    for name, errors, percent in (
        ("good", [1] * 60, 10.0),
        ("other", [n + (n == 2 or verdict[0] == "W") for n in more], 11.0),
    ):
        folder = write_run(tmp_path / name, [], 1)
        told = [vars(u) | {"utterance": u.name} for u in utterances(errors)]
        (folder / "recognised.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))
        low = percent - 3 if verdict[0] == "W" else percent - 0.1  # intervals with the opposite result
        score = {"test": {"test wer": percent, "test low": low, "test high": percent + percent - low}}
        (folder / "score.json").write_text(json.dumps(score))
        runs.append(read_run(folder))
    assert headline(ranking(runs)).startswith(verdict)


def test_runs_with_different_tests_have_no_winner(tmp_path: Path) -> None:
    runs = []
    for name, percent, reference in (("one", 0.0, "yes no"), ("two", 13.0, "yes"), ("three", 13.0, "yes no")):
        folder = write_run(tmp_path / name, [], 1)
        row = {"utterance": "u1", "speaker": "s", "reference": reference, "hypothesis": "", "errors": 1, "words": 2}
        (folder / "recognised.jsonl").write_text(json.dumps(row) + "\n")
        score = {"test": {"test wer": percent, "test low": percent, "test high": percent + 1}}
        (folder / "score.json").write_text(json.dumps(score))
        runs.append(read_run(folder))
    one, two, three = runs
    told = "one 0.00 % (95 % interval 0.00 to 1.00 %), two 13.00 % (95 % interval 13.00 to 14.00 %)"
    assert headline(ranking([two, one])) == f"Tested on different utterances: {told}"
    assert headline(ranking([three, one])).startswith("No difference beyond chance")
    assert not any("overlaps" in line for line in notes(ranking([two, three])))
