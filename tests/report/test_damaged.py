"""Runs that are cut off, empty, or full of non-finite numbers give a complete page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.folders import charts, random_rows, write_run

pytest.importorskip("matplotlib", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")
pytest.importorskip("jinja2", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")

from murmur.report.page import page, sections, write_report
from murmur.report.read import read_run
from murmur.report.records import Records

VOID = {"meta", "link", "input", "line", "br"}
STRANGE = [None, True, "", "text", -1.0, 1e308, 10**400, float("nan"), float("inf"), [], {}]


class Balanced(HTMLParser):
    """Fails if tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def sound(text: str) -> None:
    """Check that the page nests, its data is JSON, and it shows no non-finite number."""
    Balanced(text)
    assert "<h1>" in text
    if 'id="curves"' in text:
        assert all(len(series["x"]) == len(series["y"]) > 0 for chart in charts(text) for series in chart["series"])
    shown = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL)
    assert not re.findall(r"[>\s\"(](?:nan|inf|NaN|Infinity)[\s<\"),;]", shown)


@pytest.mark.parametrize("kept", [0, 1, 2, 37, 500, 2001])
def test_a_run_cut_off_in_mid_line(kept: int, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", random_rows(3, 2, 60), 2)
    text = (run / "records.jsonl").read_bytes()
    (run / "records.jsonl").write_bytes(text[: kept or None][: len(text) - 17])
    made = write_report([run], tmp_path / "r.html").read_text()
    sound(made)
    assert "records.jsonl: the last line is unfinished and left out" in made


@pytest.mark.parametrize("learners", [0, 1])
def test_no_learner_and_one(learners: int, tmp_path: Path) -> None:
    rows = random_rows(3, learners, 30) if learners else []
    made = write_report([write_run(tmp_path / "run", rows, learners)], tmp_path / "r.html").read_text()
    sound(made)
    assert ("no evaluation yet" in made) == (learners == 0)
    assert "Averaging pairs" not in made


def test_a_learner_whose_losses_were_no_numbers(tmp_path: Path) -> None:
    rows = [row | {"loss": float("nan"), "rate": float("inf")} for row in random_rows(3, 1, 30)]
    marks = [row | {"figures": {"loss": float("nan")}} for row in rows if row["kind"] == "evaluation"]
    steps = [row for row in rows if row["kind"] == "step"]
    made = write_report([write_run(tmp_path / "run", [*steps, *marks], 1)], tmp_path / "r.html").read_text()
    sound(made)
    assert "<dt>losses that were not finite</dt><dd>30</dd>" in made


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_records_with_strange_values(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = random_rows(data.draw(st.integers(0, 99)), 2, 24)
    for _ in range(data.draw(st.integers(1, 6))):
        row = data.draw(st.sampled_from(rows))
        row[data.draw(st.sampled_from(sorted(row)))] = data.draw(st.sampled_from(STRANGE))
    folder = tmp_path_factory.mktemp("strange") / "run"
    write_run(folder, rows, 2)
    run = read_run(folder)
    sound(page([run], {}))
    assert len(run.records.losses.items()) <= 161


def test_drawings_of_strange_values(tmp_path: Path) -> None:
    rows = random_rows(1, 2, 48)
    for place, value in enumerate(STRANGE):
        rows[place][("seconds", "samples", "loss", "staleness", "compute_seconds")[place % 5]] = value
    run = read_run(write_run(tmp_path / "run", rows, 2))
    sound(page([run], sections([run])))


def test_a_damaged_record_changes_nothing() -> None:
    records = Records()
    for row in random_rows(1, 2, 20):
        records.add(row)
    before = json.dumps([records.seconds_of, records.steps_of, records.last_seconds, records.training_losses])
    for strange in (
        {"seconds": float("nan")},
        {"samples": -1.0},
        {"compute_seconds": float("inf")},
        {"compute_seconds": 1e308},  # the sum of two is not finite
        {"staleness": "x"},
    ):
        with pytest.raises(ValueError):
            records.add(random_rows(2, 2, 1)[0] | strange)
    assert json.dumps([records.seconds_of, records.steps_of, records.last_seconds, records.training_losses]) == before


@pytest.mark.parametrize("name", ["learner", "staleness"])
def test_negative_counts_are_no_records(name: str, tmp_path: Path) -> None:
    rows = random_rows(3, 2, 6)
    rows[0][name] = -1
    folder = write_run(tmp_path / "run", rows[:1], 2)
    run = read_run(folder)
    assert "1 damaged line left out, the first is line 1" in run.problems[0]
    write_report([folder], tmp_path / "page.html")
    sound((tmp_path / "page.html").read_text())
