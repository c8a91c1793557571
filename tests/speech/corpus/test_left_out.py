"""Messages about things that are left out: how many, the first three, the reason."""

from __future__ import annotations

import pytest

from murmur.speech.corpus.left_out import left_out


@pytest.mark.parametrize(
    ("reasons", "of", "told"),
    [
        ([("a", "x")], None, "1 file is left out: a: x"),
        ([("a", "x")], 9, "1 of 9 files is left out: a: x"),
        ([("a", "x"), ("b", "x")], 2, "2 of 2 files are left out: a, b: x"),
        ([("a", "x"), ("b", "y")], 2, "2 of 2 files are left out: a: x; b: y"),
        ([(c, "x") for c in "abcde"], None, "5 files are left out: a, b, c and 2 more: x"),
        ([("a", "x"), ("b", "x"), ("c", "y"), ("d", "x")], 8, "4 of 8 files are left out: a, b: x; c: y; and 1 more"),
        ([("a", "x"), ("b", "x"), ("c", "x"), ("d", "y")], 8, "4 of 8 files are left out: a, b, c: x; and 1 more"),
    ],
)
def test_left_out(reasons: list[tuple[str, str]], of: int | None, told: str) -> None:
    assert left_out("file", reasons, of) == told
