"""Readers of files that runs are writing leave an unfinished last line out, even one that could be read, and say so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from murmur.engine.resume import steps_after
from murmur.report.cells import read_grid
from murmur.report.events import records_of
from murmur.report.read import read_run
from murmur.report.recognised import read_recognised
from murmur.report.watch import Watched
from tests.support.folders import random_rows, write_run

ROWS = [row | {"kind": "step", "loss": 1.0} for row in random_rows(0, 2, 6) if row["kind"] == "step"]
WORDS = {"utterance": "u", "speaker": "s", "reference": "one", "hypothesis": "two", "errors": 1, "words": 1}
CELL = {"name": "a", "status": "failed", "error": "status 75"}
LINES = {
    "records.jsonl": ROWS,
    "recognised.jsonl": [{**WORDS, "utterance": f"u{n}\u2028"} for n in range(6)],  # a separator that is no line's end
    "cells.jsonl": [{**CELL, "digest": str(n)} for n in range(6)],
    "trace.json": [{"cat": "evaluation", "pid": 0, "dur": 1e6, "ts": n} for n in range(6)],
}


def reported(folder: Path) -> tuple[int, list[str]]:
    run = read_run(folder)
    return sum(run.records.steps_of.values()), list(run.problems)


def watched(folder: Path) -> tuple[int, list[str]]:
    run = Watched(folder, lambda: 0.0)
    run.look()
    assert run.damaged == 0
    return sum(run.records.steps_of.values()), []


def recognised(folder: Path) -> tuple[int, list[str]]:
    problems: list[str] = []
    return len(read_recognised(folder / "recognised.jsonl", problems)), problems


def compared(folder: Path) -> tuple[int, list[str]]:
    grid = read_grid(folder)
    return len(grid.failed), list(grid.problems)


READERS: dict[str, tuple[str, Callable[[Path], tuple[int, list[str]]]]] = {
    "report": ("records.jsonl", reported),
    "watch": ("records.jsonl", watched),
    "events": ("records.jsonl", lambda folder: (len(list(records_of(read_run(folder)))), [])),
    "resume": ("records.jsonl", lambda folder: (steps_after(folder / "records.jsonl", 0), [])),
    "words": ("recognised.jsonl", recognised),
    "comparison": ("cells.jsonl", compared),
    "phases": ("trace.json", lambda folder: (int(read_run(folder).phases.get("evaluation", 0)), [])),
}
NOTING = {"report", "words", "comparison"}


def text_of(rows: list[dict[str, Any]], end: str) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows).encode()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("cut", [0, 1, 2, 9])
def test_a_line_counts_once_its_end_is_written(reader: str, cut: int, tmp_path: Path) -> None:
    """Cut by one, the last line is whole but for its line feed."""
    name, read = READERS[reader]
    folder = write_run(tmp_path / "run", ROWS, 2)
    whole = text_of(LINES[name], ",\n" if name == "trace.json" else "\n")
    (folder / name).write_bytes(whole[: len(whole) - cut])
    found, problems = read(folder)
    assert found == len(LINES[name]) - (cut > 0)
    notes = [problem for problem in problems if "unfinished" in problem]
    assert len(notes) == (reader in NOTING and cut > 0)
    assert all(f"{folder / name}: the last line is unfinished and left out" in note for note in notes)
    assert not any("damaged" in problem for problem in problems)
