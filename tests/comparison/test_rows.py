"""Rows on disk: written rows are read back after any cut of the file; other damage is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from murmur.comparison import table
from murmur.comparison.rows import DamagedRows, Row, Rows, digest_of
from murmur.report.error_rate import Errors

TEXTS = st.text(max_size=8)
CONTENTS = st.dictionaries(TEXTS, TEXTS | st.integers() | st.none())
ROWS = st.lists(st.tuples(st.sampled_from("abc"), CONTENTS), max_size=6)


@settings(deadline=None)
@given(rows=ROWS, share=st.floats(0, 1))
def test_a_file_cut_anywhere_keeps_its_whole_rows_and_takes_more(rows, share, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("rows") / "deeper" / "rows.jsonl"
    kept, ends = Rows(path), [0]
    for digest, content in rows:
        kept.append({**content, "digest": digest})
        ends.append(path.stat().st_size)
    if path.exists():
        cut = round(share * ends[-1])
        path.write_bytes(path.read_bytes()[:cut])
        whole = rows[: sum(end <= cut for end in ends) - 1]
    else:
        whole = []
    assert kept.read() == {digest: {**content, "digest": digest} for digest, content in whole}
    kept.append({"digest": "last"})
    assert kept.read() == {**{d: {**c, "digest": d} for d, c in whole}, "last": {"digest": "last"}}


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"name": 1}', b"", b"\xff"])
def test_damage_before_the_end_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"digest": "a"}\n' + line + b'\n{"digest": "b"}\n')
    with pytest.raises(DamagedRows, match="line 2"):
        Rows(path).read()


def test_numbers_that_json_cannot_say_become_null(tmp_path: Path) -> None:
    kept = Rows(tmp_path / "rows.jsonl")
    kept.append({"digest": "a", "loss": float("nan"), "more": [float("inf"), {"x": -float("inf")}]})
    assert kept.read()["a"] == {"digest": "a", "loss": None, "more": [None, {"x": None}]}
    assert "NaN" not in kept.path.read_text()


def test_digests_look_at_content_not_at_order() -> None:
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1}) != digest_of({"a": 1, "b": 3})


@dataclass
class Same:
    """Words of runs with identical errors."""

    speakers: dict[str, str] = field(default_factory=dict)

    def by_seed(self, rows: Sequence[Row]) -> dict[int, Errors]:
        return {row["seed"]: {"u1": (1, 4), "u2": (0, 3)} for row in rows}


def test_a_run_that_made_the_same_errors_differs_by_nothing_and_a_run_from_itself_not_at_all() -> None:
    alone = [{"name": f"alone-{seed}", "seed": seed} for seed in (0, 1)]
    others = [{"name": f"other-{seed}", "seed": seed} for seed in (0, 1)]
    rate, apart = table._words(others, alone, Same())  # type: ignore[arg-type]
    assert apart == (0.0, 0.0, 0.0)
    assert table._words(alone, alone, Same()) == (rate, None)  # type: ignore[arg-type]
