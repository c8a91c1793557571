"""Counts, verbs and names in messages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from murmur.core.counted import counted, named

SOURCE = Path(__file__).parents[2] / "src" / "murmur"
NOUNS = "utterance|recording|speaker|file|learner|word|sentence|process|minibatch|record|line|segment|host"

PLURAL = re.compile(rf"%d (more )?({NOUNS})e?s\b|({NOUNS}|pair|gram)\(s\)")


@pytest.mark.parametrize(
    ("number", "noun", "told"),
    [
        (0, "utterance", "0 utterances"),
        (1, "utterance", "1 utterance"),
        (2, "damaged record", "2 damaged records"),
        (1, "pass", "1 pass"),
        (3, "pass", "3 passes"),
        (2, "minibatch", "2 minibatches"),
        (2, "vocabulary", "2 vocabularies"),
        (2, "day", "2 days"),
        (1, "3-gram", "1 3-gram"),
    ],
)
def test_a_count_has_its_noun(number: int, noun: str, told: str) -> None:
    assert counted(number, noun) == told


def test_three_names_are_told() -> None:
    assert named(["a", "b", "c"]) == "a, b, c"
    assert named(["a", "b", "c", "d"]) == "a, b, c, ..."
    assert named([]) == ""


def test_no_message_has_a_plural_behind_a_number_that_may_be_one() -> None:
    """A number in a message is followed by a noun of `counted`: "1 utterances" and "1 utterance(s)" are no English."""
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and PLURAL.search(node.value):
                wrong.append(f"{path.name}:{node.lineno}: {node.value}")
            if isinstance(node, ast.JoinedStr) and has_plural(node):
                wrong.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def has_plural(text: ast.JoinedStr) -> bool:
    """True if a length in braces is followed by a plural that does not depend on it."""
    pairs = zip(text.values, text.values[1:], strict=False)
    return any(
        isinstance(value, ast.FormattedValue)
        and ast.unparse(value.value).startswith("len(")
        and isinstance(after, ast.Constant)
        and re.match(rf" (more )?({NOUNS})e?s\b", str(after.value)) is not None
        for value, after in pairs
    )
