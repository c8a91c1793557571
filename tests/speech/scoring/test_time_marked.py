"""Scoring of CTM against STM: agreement with sclite, sums by speaker and subset, damaged files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from murmur.report.error_rate import score_by_group
from murmur.speech.decoding.transcript import Transcript, Word, as_ctm, one_field
from murmur.speech.scoring.time_marked import (
    MappingRules,
    ScoredSegment,
    TimedWord,
    TimeMarkError,
    by_label,
    read_ctm,
    read_glm,
    read_stm,
    score_segments,
    without_hyphens,
    write_alignments,
)
from murmur.speech.scoring.word_network import WordNetwork, align
from tests.support.nist import Counts, Step, alignments, filtered, recordings, references_filtered, sclite, transcript

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


WORDS = ("a", "b", "ab", "ba", "a's", "uh", "c")
RULES = """;; spelling
* name = "test"
[BYE-BYE] => [BYE BYE] / [ ] __ [ ] ;; two words
[GONNA] => {[GONNA] / [GOING TO]} / [ ] __ [ ]
[UH] => [(%HESITATION)] / [ ] __ [ ]
[NEW YORK] => [NEWYORK] / [ ] __ [ CITY]
['S] => [ IS] / [IT] __ [ ]
"""


def rules(folder: Path, text: str = RULES) -> MappingRules:
    (folder / "rules.glm").write_text(text)
    return read_glm(folder / "rules.glm")


def test_as_rfilter1(tmp_path: Path) -> None:
    draw = random.Random(3)

    def some(most: int, least: int = 1) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, most))).upper()

    for _ in range(60):
        made = [
            f"[{some(2)}] => [{some(2, 0)}] / [{draw.choice((' ', ' ', 'a ', ''))}] __ [{draw.choice((' ', ' b', ''))}]"
            for _ in range(draw.randint(1, 6))
        ]
        lines = [some(8).lower() for _ in range(10)]
        theirs = [" ".join(line.lower().split()) for line in filtered(tmp_path, made, lines)]
        found = read_glm(tmp_path / "rules.glm")
        assert [found.applied(line) for line in lines] == theirs


def test_rules_without_contexts_as_rfilter1(tmp_path: Path) -> None:
    """A rule without contexts counts inside words too; where several begin, the first of the file counts."""
    draw = random.Random(5)

    def some(letters: str, most: int, least: int = 1) -> str:
        return "".join(draw.choice(letters) for _ in range(draw.randint(least, most))).strip()

    changed = 0
    for _ in range(80):
        made = [f"[{some('ABC', 3)}] => [{some('ABC ', 3, 0)}]" for _ in range(draw.randint(1, 5))]
        lines = [" ".join(some("abc'", 5) for _ in range(draw.randint(1, 6))) for _ in range(10)]
        theirs = [" ".join(line.lower().split()) for line in filtered(tmp_path, made, lines)]
        found = read_glm(tmp_path / "rules.glm")
        assert [found.applied(line) for line in lines] == theirs
        changed += sum(a != b for a, b in zip(lines, theirs, strict=True))
    assert changed > 400


def test_references_as_csrfilt(tmp_path: Path) -> None:
    """Hyphens, optional words, alternatives; `UH-HUH` is found by its rule before its hyphen is a space."""
    draw = random.Random(7)
    made = [
        *("[UH-HUH] => [%BCACK] / [ ] __ [ ]", "[UH] => [%HESITATION] / [ ] __ [ ]", "[D] => [E F] / [ ] __ [ ]"),
        *("['LL] => [ WILL]", "[GONNA] => [{ GONNA / GOING TO }] / [ ] __ [ ]", "[XY] => [Z]"),
    ]
    words = ("uh", "uh-huh", "twenty-one", "d", "we'll", "gonna", "th-", "-ord", "axyb", "a--b", "x-y-z")
    plain = [word for word in words if word != "gonna"]

    def piece() -> str:
        kind, word = draw.choice("woa"), draw.choice(words)
        optional = " ".join(draw.choice(plain) for _ in range(draw.randint(1, 2)))
        return {"w": word, "o": f"({optional})", "a": f"{{ {word} / {draw.choice(plain)} }}"}[kind]

    lines = [" ".join(piece() for _ in range(draw.randint(1, 6))) for _ in range(300)]
    theirs = [" ".join(line.lower().split()) for line in references_filtered(tmp_path, made, lines)]
    found = read_glm(tmp_path / "rules.glm")
    assert [found.of_reference(line) for line in lines] == theirs


def test_rules_by_hand(tmp_path: Path) -> None:
    applied = rules(tmp_path).applied("Bye-bye it's gonna uh uhh NEW YORK city new york")
    assert applied == "bye bye it is {gonna / going to} (%hesitation) uhh newyork city new york"


@pytest.mark.parametrize("first", [";; rules\n", "* name\n", ""])
def test_a_byte_order_mark_is_skipped(first: str, tmp_path: Path) -> None:
    (tmp_path / "rules.glm").write_text(f"\ufeff{first}[hello] => [hi]\n", encoding="utf-8")
    assert read_glm(tmp_path / "rules.glm").applied("hello you") == "hi you"


def test_words_of_hypotheses_share_their_time(tmp_path: Path) -> None:
    words = [TimedWord(1.0, 0.4, "bye-bye"), TimedWord(2.0, 0.2, "gonna"), TimedWord(3.0, 0.2, "uh")]
    found = rules(tmp_path).of_hypothesis(words)
    assert [(w.begin, w.duration, w.word) for w in found] == [
        (1.0, 0.2, "bye"), (1.2, 0.2, "bye"), (2.0, 0.2, "gonna"), (3.0, 0.2, "uh")
    ]  # fmt: skip


def test_hyphens_of_fragments_stay() -> None:
    assert without_hyphens("twenty-one wor- -ord a-b-c") == "twenty one wor- -ord a b c"


@pytest.mark.parametrize("line", ["A => B", "[] => [B] / [ ] __ [ ]", "[A] -> [B]"])
def test_a_damaged_rule(line: str, tmp_path: Path) -> None:
    with pytest.raises(TimeMarkError, match=r"rules.glm:2: no rule"):
        rules(tmp_path, f";; first\n{line}\n")


@pytest.mark.parametrize(
    ("said", "written", "hypothesis", "words", "errors"),
    [
        ("(wanna)", "{ (wanna) / (want) (to) }", "", 1, 0),
        ("(wanna)", "{ (wanna) / (want) (to) }", "want to", 2, 0),
        ("go (wanna)", "go { (wanna) / (want) (to) }", "go wanna", 2, 0),
        ("go (wanna)", "go { (wanna) / (want) (to) }", "go there", 2, 1),
        ("(i wanna)", "(i) { (wanna) / (want) (to) }", "i want to", 3, 0),
        ("(um)", "{ (um) / @ }", "", 0, 0),
        ("{ um / wanna } go", "{ { um / @ } / { wanna / want to } } go", "go", 1, 0),
        ("({ wanna / go })", "{ { (wanna) / (want) (to) } / (go) }", "want to", 2, 0),
        ("(uh-huh (wanna))", "(uh) (huh) { (wanna) / (want) (to) }", "uh huh", 3, 0),
        ("(wanna", "({ wanna / want to }", "( wanna", 2, 0),  # a parenthesis that does not match is part of a word
    ],
)
def test_alternatives_of_optional_words(
    said: str, written: str, hypothesis: str, words: int, errors: int, tmp_path: Path
) -> None:
    found = rules(tmp_path, "[WANNA] => [{ WANNA / WANT TO }] / [ ] __ [ ]\n[UM] => [{ UM / @ }] / [ ] __ [ ]\n")
    assert found.of_reference(said) == written
    pairs = align(WordNetwork.of(written), hypothesis.split())
    assert sum(pair.reference is not None for pair in pairs) == words
    assert sum(pair.kind != "correct" for pair in pairs) == errors


def test_comments_need_not_be_utf8_and_rules_do(tmp_path: Path) -> None:
    (tmp_path / "a.glm").write_bytes(b';; caf\xe9\n* name = "\xe9"\n[A] => [B] ;; \xe9\n')
    assert read_glm(tmp_path / "a.glm").applied("a") == "b"
    (tmp_path / "a.glm").write_bytes(b";; one\n[CAF\xe9] => [B]\n")
    with pytest.raises(ValueError, match=r"a.glm:2 is not UTF-8"):
        read_glm(tmp_path / "a.glm")
