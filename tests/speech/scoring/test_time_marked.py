"""Scoring of CTM against STM: agreement with sclite, sums by speaker and subset, damaged files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from murmur.speech.decoding.error_rate import score_by_group
from murmur.speech.decoding.transcript import Transcript, Word, as_ctm, one_field
from murmur.speech.scoring.stm import TimeMarkError, read_ctm, read_stm
from murmur.speech.scoring.time_marked import (
    ScoredSegment,
    by_label,
    score_segments,
    write_alignments,
)
from nist import Counts, Step, alignments, recordings, sclite, transcript

STM = """;; LABEL "SWB" "Switchboard" "calls"
f1 A s1 0.0 5.0 <SWB> hello (uh) world { going to / gonna } go
f1 A s1 5.0 6.0 <SWB> IGNORE_TIME_SEGMENT_IN_SCORING
f1 A s2 7.0 9.0 <CH> gamma delta
f1 B s2 0.0 4.0 <CH> alpha
"""
CTM = """f1 A 0.1 0.2 HELLO
f1 A 0.5 0.2 word
f1 A 1.0 0.2 gonna
f1 A 1.5 0.2 go 0.93
f1 A 5.5 0.2 ignored
f1 A 6.5 0.1 between
f1 A 7.5 0.1 gamma
f1 A 9.5 0.1 late
"""


def counts(each: ScoredSegment) -> Counts:
    kinds = [pair.kind for pair in each.pairs]
    correct, replaced, deleted, inserted = (
        kinds.count(k)
        for k in ("correct", "substitution", "deletion", "insertion")  # type: ignore[arg-type]
    )
    return correct, replaced, deleted, inserted


def scored(folder: Path) -> list[ScoredSegment]:
    return score_segments(read_stm(folder / "ref.stm"), read_ctm(folder / "hyp.ctm"))


def written(folder: Path, stm: str, ctm: str) -> Path:
    (folder / "ref.stm").write_text(stm)
    (folder / "hyp.ctm").write_text(ctm)
    return folder


def test_error_by_error_as_sclite(tmp_path: Path) -> None:
    """Among several hundred segments at most one in five hundred differs: two alignments with equal costs."""
    segments, others = 0, list[object]()
    for seed in range(60):
        theirs = sclite(tmp_path, *recordings(random.Random(seed)))
        ours: dict[str, list[Counts]] = {}
        for each in scored(tmp_path):
            ours.setdefault(each.segment.speaker, []).append(counts(each))
        assert ours.keys() == theirs.keys()
        for speaker, found in ours.items():
            segments += len(found)
            others += [(seed, a, b) for a, b in zip(found, theirs[speaker], strict=True) if a != b]
    assert segments > 300
    assert len(others) <= segments / 500, others


def steps(each: ScoredSegment) -> list[Step]:
    letters = {"correct": "C", "substitution": "S", "deletion": "D", "insertion": "I"}
    return [(letters[p.kind], (p.reference or "").lower(), (p.hypothesis or "").lower()) for p in each.pairs]


def cost(found: list[Step]) -> int:
    left_out = sum(kind == "C" and not hypothesis for kind, _, hypothesis in found)  # optional words
    return sum({"C": 0, "S": 4, "D": 3, "I": 3}[kind] for kind, _, _ in found) + 2 * left_out


def test_alignments_are_those_of_sclite_word_by_word(tmp_path: Path) -> None:
    """The wrong words are the same, or in three segments of a hundred others at exactly equal cost."""
    ours, theirs = list[list[Step]](), list[list[Step]]()
    for seed in range(100, 145):
        stm, ctm = recordings(random.Random(seed))
        written(tmp_path, "\n".join([*stm, ""]), "\n".join([*ctm, ""]))
        by_sclite = alignments(tmp_path)
        for each in scored(tmp_path):
            ours.append(steps(each))
            theirs.append(by_sclite.pop((*each.segment.recording, each.segment.begin)))
        assert not any(by_sclite.values())
    errors = [[step for step in found if step[0] != "C"] for found in theirs]
    assert len(theirs) > 500
    assert sum(map(len, errors)) > 1000
    assert [cost(found) for found in ours] == [cost(found) for found in theirs]
    others = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    assert len(others) <= 0.03 * len(theirs), others


def test_transcripts_with_many_alternatives_as_sclite(tmp_path: Path) -> None:
    draw = random.Random(1)
    stm = [f"f A s {20 * k}.00 {20 * k + 20}.00 {transcript(draw)}" for k in range(400)]
    said = [draw.choices(("uh", "going", "to", "the", "gonna"), k=draw.randint(0, 6)) for _ in range(400)]
    ctm = [f"f A {20 * k + i + 1}.00 0.10 {word}" for k, words in enumerate(said) for i, word in enumerate(words)]
    theirs = sclite(tmp_path, stm, ctm)["s"]
    ours = [counts(each) for each in scored(tmp_path)]
    cost = [4 * s + 3 * (d + i) for _, s, d, i in ours]
    assert len(ours) == len(theirs) == 400
    assert sum(a != b for a, b in zip(ours, theirs, strict=True)) <= 4
    assert sum(cost) == pytest.approx(sum(4 * s + 3 * (d + i) for _, s, d, i in theirs), rel=0.01)


def test_by_hand(tmp_path: Path) -> None:
    found = scored(written(tmp_path, STM, CTM))
    # hello, (uh), world -> word, gonna, go; between inserted, gamma, late for delta; alpha deleted
    assert [counts(each) for each in found] == [(4, 1, 0, 0), (1, 1, 0, 1), (0, 0, 1, 0)]
    names = {each.name: each.segment.speaker for each in found}
    speakers, labels = score_by_group({each.name: each.rate for each in found}, names), by_label(found)
    assert {s: (r.errors, r.tokens) for s, r in speakers.items()} == {"s1": (1, 5), "s2": (3, 3)}
    assert {s: (r.errors, r.tokens) for s, r in labels.items()} == {"swb": (1, 5), "ch": (3, 3)}
    assert read_stm(tmp_path / "ref.stm").names == {"swb": "Switchboard"}
    write_alignments(tmp_path / "errors.txt", found)
    lines = (tmp_path / "errors.txt").read_text().splitlines()
    assert lines[:4] == [
        "f1-a-000007.00  s2  %WER 100.00 [ 2 / 2, 1 ins, 0 del, 1 sub ]",
        "  ref  *       gamma delta",
        "  hyp  between gamma late",
        "       I             S",
    ]


@pytest.mark.parametrize(
    ("stm", "ctm", "what"),
    [
        ("f A s 0.0", "f A 0 1 a", r"ref.stm:1: no STM segment"),
        ("f A s 2.0 1.0 a", "f A 0 1 a", r"ref.stm:1: the segment ends at 1 s"),
        ("f A s nan 1.0 a", "f A 0 1 a", r"ref.stm:1: not a time"),
        ("f A s 0.0 1.0 { a", "f A 0 1 a", r"ref.stm:1: a brace is not closed"),
        (";; nothing", "f A 0 1 a", "holds no segment"),
        ("f A s 0.0 1.0 a", "f A 0 1", r"hyp.ctm:1: no CTM word"),
        ("f A s 0.0 1.0 a", "f A 0 x a", r"hyp.ctm:1: not a time"),
        ("f A s 0.0 1.0 a", "f A 0 1 <ALT_BEGIN>", r"hyp.ctm:1: alternatives"),
        ("f A s 0.0 1.0 a", "f B 0 1 a", "no segment of 'f', channel 'b'"),
    ],
)
def test_damaged_files(stm: str, ctm: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(TimeMarkError, match=what):
        scored(written(tmp_path, stm + "\n", ctm + "\n"))


def total(folder: Path, stm: str, ctm: str) -> tuple[int, int]:
    (folder / "ref.stm").write_text(stm, encoding="utf-8", newline="")
    (folder / "hyp.ctm").write_text(ctm, encoding="utf-8", newline="")
    rates = [each.rate for each in scored(folder)]
    return sum(rate.errors for rate in rates), sum(rate.tokens for rate in rates)


@pytest.mark.parametrize("separator", ["\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\u00a0", "\u3000"])
def test_words_of_a_transcript_end_at_any_white_space(separator: str, tmp_path: Path) -> None:
    words = ["so", "we", "waited", "then", "left"]
    ctm = "".join(f"a A {n / 5} 0.1 {word}\n" for n, word in enumerate(words))
    assert total(tmp_path, f"a A s1 0 2 <o> so we{separator}waited then{separator} left\r\n", ctm) == (0, 5)
    assert total(tmp_path, "a A s1 0 2 e\u0301cole (uh huh) ({mm / oh no})\n", "a A 0 1 \u00e9cole\n") == (0, 4)


@pytest.mark.parametrize(
    ("in_stm", "in_ctm"),
    [
        ("\u00c4rger", "%C3%84rger"),
        ("\u00c4rger", "A\u0308rger"),
        ("%C3%84RGER", "\u00e4rger"),
        ("my%20talk", "my%20talk"),
        ("50%25off", "50%25off"),
        ("50%20off", "50%2520off"),
        ("a+b", "a+b"),
    ],
)
def test_names_of_recordings_may_be_percent_encoded(in_stm: str, in_ctm: str, tmp_path: Path) -> None:
    assert total(tmp_path, f"{in_stm} 1 s 0 3 FOUR\n", f"{in_ctm} 1 0.1 0.3 FOUR 1.0\n") == (0, 1)


@pytest.mark.parametrize(
    "name", ["\u00c4rger", "my talk", "50%20off", ";;note", "\u65e5\u672c\u8a9e\u3000\u8a71", "a<b>"]
)
def test_transcripts_are_found_by_the_names_of_their_recordings(name: str, tmp_path: Path) -> None:
    written_ctm = as_ctm(Transcript(f"/x/{name}.wav", 3.0, (Word("FOUR", 0.1, 0.3, 1.0),)))
    assert total(tmp_path, f"{one_field(name)} 1 s 0 3 FOUR\n", written_ctm) == (0, 1)
    if name.isalnum():
        assert total(tmp_path, f"{name} 1 s 0 3 FOUR\n", written_ctm) == (0, 1)


def test_one_recording_by_two_names_and_columns_too_many_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TimeMarkError, match="in two ways"):
        total(tmp_path, "\u00e4 1 s 0 3 FOUR\n", "\u00e4 1 0 1 FOUR\n%C3%A4 1 1 1 FOUR\n")
    for line in ("a 1 0 1 NEW YORK", "a 1 0 1 NEW 0.5 lex spk more", "a 1 0 1"):
        with pytest.raises(TimeMarkError, match=r"hyp.ctm:1: no CTM word"):
            total(tmp_path, "a 1 s 0 3 NEW\n", f"{line}\n")
    assert total(tmp_path, "a 1 s 0 3 NEW\n", "a 1 0 1 NEW NA lex unknown\n") == (0, 1)
