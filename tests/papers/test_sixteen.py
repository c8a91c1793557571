"""The first lines of the papers' page, from made-up rows that `benchmarks/sixteen_devices.py` would write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from murmur.comparison.rows import Rows
from murmur_papers.studies import sixteen, stragglers
from murmur_papers.studies.page import write
from sixteen_devices import Study
from sixteen_runs import Material
from sixteen_study import DELAYED, FIXED, FULL, RANDOMISED, SEEDS, SLOW, SYNCHRONOUS, Cell, cells, nodes

TURNS, PACE = 1500, 1.2
WRONG = [1, 4, 2, 6, 3, 5, 2, 4]


def written(path: Path, chosen: Sequence[Cell], errors: int = 0) -> Rows:
    """Rows as the benchmark appends them: `errors` more a run in systems than in one learner, 0.1 % more loss."""
    study = Study(FULL, Material(FULL, None), Rows(path), path.parent)
    for cell in chosen:
        words = {f"u{i}": [n + (errors if cell.kind == "devices" else 0), 10] for i, n in enumerate(WRONG)}
        found = {"heldout": {"loss": 1.3 * (1.001 if cell.kind == "devices" else 1.0) + cell.seed / 100}}
        if cell.kind == "devices":
            seconds = TURNS * PACE / (0.9 if cell.slow == 1 else 0.8)
            found |= {"seconds": seconds, "minibatches": TURNS * 16, "alone": PACE, "build": "states"}
        study._append(
            study.digest(cell), cell, {"build": "states", **found, **({"errors": words} if cell.decoded else {})}
        )
    return study.rows


def line(path: Path, system: str) -> tuple[str, str]:
    (found,) = ((ours, told) for _, claim, ours, told in sixteen.lines(path) if claim.endswith(f", {system}"))
    return found


def test_systems_are_those_of_the_benchmark() -> None:
    planned = {(cell.strategy, cell.slow) for cell in cells(FULL) if cell.kind == "devices" and cell.decoded}
    assert {(strategy, slow) for *_, strategy, slow in sixteen.SYSTEMS} <= planned
    names = (sixteen.DELAYED, sixteen.RANDOMISED, sixteen.FIXED, sixteen.NODES, sixteen.SLOW, sixteen.COPES)
    assert names == (DELAYED, RANDOMISED, FIXED, nodes(FULL), SLOW, stragglers.COPES)


def test_lines_have_speed_loss_and_words_over_seeds(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    written(path, cells(FULL))
    ours, told = line(path, "delay-by-one")
    assert ours == "16 learners: 14.4 times as fast, loss 1.001 (1.001 to 1.001), WER +0.0 points (+0.0 to +0.0)"
    assert told == "loss equal within 3 %; words equal within 3 %"
    ours, told = line(path, "fixed ring, one 10 times slower")
    assert ours.startswith("16 learners: 12.8 times as fast (14.4 without a slow one), loss 1.001 (one seed)")
    assert told == "loss undecided: one seed; words undecided: one seed; speed reached"
    page = write({}, tmp_path, path).read_text()
    assert page.index("14.4 times as fast") < page.index("averaging frequencies that are optimal")


def test_words_that_are_worse_are_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    written(path, cells(FULL), errors=2)
    assert line(path, "delay-by-one")[1] == "loss equal within 3 %; words worse"
    assert "WER +20.0 points (+20.0 to +20.0)" in line(path, "delay-by-one")[0]


def test_lines_without_rows_are_empty(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert {each[2:] for each in sixteen.lines(path)} == {("", "")}
    rows = written(path, [cell for cell in cells(FULL) if cell.kind != "words"])
    assert {each[2:] for each in sixteen.lines(path)} == {("", "")}
    assert len(rows.read()) == len(cells(FULL)) - len(SEEDS)


def test_one_learner_of_other_hardware_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    written(path, [cell for cell in cells(FULL) if cell.kind == "words"])
    monkeypatch.setattr("sixteen_devices.hardware", lambda: "other cores")
    written(path, [replace(Cell("devices", DELAYED), seed=seed) for seed in SEEDS] + [Cell("devices", SYNCHRONOUS)])
    assert line(path, "delay-by-one")[1] == "loss undecided: different devices; words undecided: different devices"
