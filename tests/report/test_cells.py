"""Folders of comparisons: the table shows cells.jsonl, the curves are those of the runs, contradictions are named."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

from tests.support.folders import charts, random_rows, tables, write_run

pytest.importorskip("matplotlib", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")
pytest.importorskip("jinja2", reason="the drawing libraries are not installed (pip install murmur-asr[viz])")

from murmur.report.cells import read_grid
from murmur.report.page import write_report
from murmur.report.read import ReportError


def cell(name: str, **more: object) -> dict[str, object]:
    told: dict[str, object] = {
        "format": 1, "digest": f"d-{name}", "name": name, "status": "finished", "error": None, "kind": "virtual",
        "strategy": "KAVG(4)", "learners": 4, "seed": 0, "samples": 1280.0, "seconds": 2.5, "heldout": {"loss": 0.625},
        "wer": {"percent": 3.25, "low": 2.5, "high": 4.125}, "waiting_share": 0.125, "sent_bytes": 2.5e6,
        "staleness": 1.5, "consensus_distance": 0.0625,
    }  # fmt: skip
    return told | more


def make_grid(folder: Path) -> Path:
    """Three cells: one agrees with its run, one does not, one has no run; a failed one; a line that is cut off."""
    folder.mkdir()
    rows = {name: random_rows(seed, 2, 40) for seed, name in enumerate(("same", "other"))}
    for name, records in rows.items():
        write_run(folder / "runs" / name, records, 2)
    seconds = max(row["seconds"] for row in rows["same"])
    empty = {"wer": None, "heldout": None, "sent_bytes": None, "staleness": None}
    lines = [
        cell("same", seconds=1.0),
        cell("same", seconds=seconds),  # the later of two lines with one digest counts
        cell("other", kind="processes", **empty),
        cell("gone", wer={"percent": 4.0, "low": None, "high": None}),
        cell("broken", status="failed", error="status 75", seconds=None),
    ]
    (folder / "cells.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"format": 1, "dig')
    return folder


def test_the_table_is_that_of_the_cells(tmp_path: Path) -> None:
    page = write_report([make_grid(tmp_path / "grid")], tmp_path / "r.html").read_text()
    names, *lines = tables(page)["Comparison grid"]
    shown = {line[0]: dict(zip(names, line, strict=True)) for line in lines}
    assert set(shown) == {"same", "other", "gone"}
    assert list(shown["same"].values())[1:6] == ["KAVG(4)", "4", "virtual cluster", "0", "1,280"]
    expected = {"WER %": "3.25", "95 % interval": "2.50 to 4.12", "held-out loss": "0.6250", "waiting share": "12.5%",
                "sent MB": "2.5", "staleness": "1.50", "consensus distance": "0.0625"}  # fmt: skip
    assert {name: shown["same"][name] for name in expected} == expected
    assert shown["other"]["seconds of"] == "this host"
    assert {shown["other"][name] for name in ("WER %", "95 % interval", "held-out loss", "sent MB", "staleness")} == {
        "-"
    }
    assert shown["gone"]["95 % interval"] == "-"
    assert {row[0] for row in tables(page)["Runs side by side"][1:]} == {"same", "other"}
    assert {series["name"] for chart in charts(page) for series in chart["series"]} == {"same", "other"}


def test_what_is_wrong_with_a_comparison_is_named(tmp_path: Path) -> None:
    grid = make_grid(tmp_path / "grid")
    page = html.unescape(write_report([grid], tmp_path / "r.html").read_text())
    assert f"{grid}/cells.jsonl: the last line is unfinished" in page
    assert "broken failed: status 75" in page
    assert f"{grid}/runs/gone is missing" in page
    assert f"{grid}/runs/same: cells.jsonl" not in page


@pytest.mark.parametrize("name", ["../secret", "/etc", "..", "", 3, None, "a\x00b"])
def test_cells_lead_nowhere_else(name: object, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    folder = tmp_path / "grid"
    (folder / "runs").mkdir(parents=True)
    (folder / "cells.jsonl").write_text(json.dumps(cell("x") | {"name": name}) + "\n")
    grid = read_grid(folder)
    assert grid.folders == []
    assert len(grid.problems) == 1
    with pytest.raises(ReportError, match="no cell of the comparison"):
        write_report([folder], tmp_path / "r.html")


def test_comparisons_and_runs_may_stand_together(tmp_path: Path) -> None:
    run = write_run(tmp_path / "alone", random_rows(7, 1, 40), 1)
    page = write_report([run, make_grid(tmp_path / "grid")], tmp_path / "r.html").read_text()
    assert {row[0] for row in tables(page)["Runs side by side"][1:]} == {"alone", "same", "other"}
