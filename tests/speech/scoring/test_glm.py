"""Mapping rules: agreement with rfilter1, hypotheses, damaged files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from murmur.speech.scoring.glm import MappingRules, read_glm, without_hyphens
from murmur.speech.scoring.stm import TimedWord, TimeMarkError
from murmur.speech.scoring.word_network import WordNetwork, align
from nist import filtered, references_filtered

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


def test_by_hand(tmp_path: Path) -> None:
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
