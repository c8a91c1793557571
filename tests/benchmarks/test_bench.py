"""The runner of benchmarks: every script has a kind, every bar a record, and arguments are given again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import BENCHMARKS, KINDS, RECORDS, Run, given, kind_of, runs, scripts
from cells import Cell, rows_of


def test_every_script_names_its_kind() -> None:
    programs = [p for p in BENCHMARKS.glob("*.py") if '__name__ == "__main__"' in p.read_text(encoding="utf-8")]
    assert len(programs) > 30
    assert [p.name for p in programs if kind_of(p) not in KINDS] == []


def test_every_bar_has_a_record() -> None:
    found = {run.script for run in runs(scripts(["bar"])) if run.commit}
    assert set(scripts(["bar"])) - found == set()


def test_every_record_of_a_script_has_its_arguments_and_its_script() -> None:
    every = scripts()
    for file in RECORDS.glob("*.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        words = record["command"].split()
        if words[0] == "python":
            assert Path(words[1]).stem in every, file.name
            assert "arguments" in record, file.name


def test_arguments_of_a_record_are_given_again_with_folders_of_this_machine() -> None:
    run = Run("one", ("--set", "task.corpus=FOLDER", "--cache", "FOLDER_OF_AN4", "--repeats", "3", "FOLDER"))
    folders = {"task.corpus": "/a", "cache": "/b", "FOLDER": "/c"}
    assert given(run, folders) == ["--set", "task.corpus=/a", "--cache", "/b", "--repeats", "3", "/c"]
    with pytest.raises(LookupError, match="--folder cache=PATH"):
        given(run, {"task.corpus": "/a"})


def double(settings: int) -> dict[str, int]:
    return {"value": 2 * settings}


def test_rows_that_are_there_are_not_made_again(tmp_path: Path) -> None:
    cells = [Cell(n, f"d{n}", {"n": n}) for n in range(3)]
    kept = tmp_path / "rows.jsonl"
    kept.write_text(json.dumps({"digest": "d1", "n": 1, "value": -1}) + "\n")
    assert rows_of(cells, kept, double, known_only=True) == [{"digest": "d1", "n": 1, "value": -1}]
    assert [row["value"] for row in rows_of(cells, kept, double, jobs=2)] == [0, -1, 4]
    assert len(kept.read_text().splitlines()) == 3
