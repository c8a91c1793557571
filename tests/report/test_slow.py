"""Records of stragglers become a table of slow learners, with factors and durations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from murmur.engine.record import StragglerRecord
from murmur.report.page import write_report
from murmur.report.read import read_run
from murmur.report.records import Slow


def line(learner: int, seconds: float, **more: Any) -> str:
    given = {"since_seconds": 10.0, "since_samples": 1200.0, "factor": 4.0, **more}
    return StragglerRecord("straggler", learner, 1, 2, 5000.0, 0.5, seconds, float("nan"), **given).line()


def run_of(folder: Path, *lines: str) -> Path:
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"learners": 4}))
    (folder / "records.jsonl").write_text("".join(lines))
    return folder


def test_a_stretch_ends_where_the_learner_keeps_up_again(tmp_path: Path) -> None:
    begun, over = line(2, 20.0), line(2, 50.0, factor=6.0, over=True)
    again, other = line(2, 90.0, since_seconds=80.0), line(1, 95.0, cause="data", host="b", factor=float("inf"))
    run = read_run(run_of(tmp_path / "run", begun, over, again, other))
    assert run.records.slow == [
        Slow(2, "", "compute", 6.0, 10.0, 1200.0, 50.0),
        Slow(2, "", "compute", 4.0, 80.0, 1200.0),
        Slow(1, "b", "data", None, 10.0, 1200.0),
    ]
    assert run.records.steps_of == {}, "they are no steps"
    assert not any("damaged" in problem for problem in run.problems)


def test_the_page_has_a_table_of_them_only_where_there_are_some(tmp_path: Path) -> None:
    slow, none = run_of(tmp_path / "slow", line(3, 30.0, host="<b>")), run_of(tmp_path / "none")
    page = write_report([slow], tmp_path / "slow.html").read_text()
    assert "Who was slow" in page
    assert "<td>3</td><td>&lt;b&gt;</td><td>computing</td><td>4.0</td><td>10</td><td>the end</td>" in page
    assert "Who was slow" not in write_report([none], tmp_path / "none.html").read_text()


def test_damaged_records_are_counted_as_such(tmp_path: Path) -> None:
    broken = line(1, 10.0).replace('"since_samples":1200.0,', "")
    run = read_run(run_of(tmp_path / "run", broken, line(2, 20.0)))
    assert [slow.learner for slow in run.records.slow] == [2]
    assert any("1 damaged line" in problem for problem in run.problems)
