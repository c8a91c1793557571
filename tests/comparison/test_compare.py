"""`murmur compare` from the command line to its files: every figure is checked against the records of a run."""

from __future__ import annotations

import csv
import json
import math
import statistics
from pathlib import Path

import pytest

from murmur import cli
from murmur.comparison import runs
from murmur.comparison.rows import Rows
from murmur.simulation import several_strategies

SMALL = ["--set", "budget.minibatches=12", "--set", "task.hidden=8", "--set", "task.per_epoch=6"]
GRID = [
    "compare",
    "toy",
    "--strategies",
    "KAVG(2),SuperLearners(ADPSGD(), 4)",
    "--virtual",
    "2,4",
    "--step-seconds",
    "0.1",
    "--jitter",
    "0.2",
    *SMALL,
]


class InThisProcess:
    """Replaces a child process: runs the same command in this one, which has imported everything already."""

    started: list[list[str]]

    def __init__(self, words: list[str], **_: object) -> None:
        type(self).started.append(words[3:])
        assert words[1:3] == ["-m", "murmur"]
        self.status = murmur(words[3:])

    def wait(self) -> int:
        return self.status


def murmur(words: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.app(words)
    return int(ended.value.code or 0)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    monkeypatch.setattr(InThisProcess, "started", [], raising=False)
    monkeypatch.setattr(runs.subprocess, "Popen", InThisProcess)
    monkeypatch.setattr(several_strategies, "draw_accounts", lambda *_: None)  # takes longer than the run
    return InThisProcess.started


def steps(folder: Path) -> list[dict]:
    return [r for r in map(json.loads, (folder / "records.jsonl").read_text().splitlines()) if r["kind"] == "step"]


def test_figures_are_those_of_the_records(tmp_path: Path, started: list[list[str]]) -> None:
    assert murmur([*GRID, "--seeds", "0,1", "--out", str(tmp_path)]) == 0
    rows = {row["name"]: row for row in Rows(tmp_path / "cells.jsonl").read().values()}
    assert len(rows) == len(started) == 2 * 4
    for name, row in rows.items():
        folder = tmp_path / "runs" / name
        records = steps(folder)
        simulated = json.loads((folder / "simulated.json").read_text())
        assert row["seconds"] == max(r["seconds"] for r in records) or row["seconds"] == simulated["seconds"]
        computed = math.fsum(r["compute_seconds"] for r in records)
        assert math.isclose(row["waiting_share"], 1 - computed / row["learners"] / row["seconds"], abs_tol=1e-12)
        assert math.isclose(row["staleness"], statistics.fmean(r["staleness"] for r in records), abs_tol=1e-12)
        assert row["sent_bytes"] == sum(simulated["sent_bytes"])
        assert row["heldout"] == json.loads((folder / "score.json").read_text())["heldout"]
        assert row["experiment"] == json.loads((folder / "run.json").read_text())["digest"]
        assert (row["samples"], row["minibatches"], row["wer"]) == (12 * 32, 12, None)
    lines = json.loads((tmp_path / "table.json").read_text())
    assert [(line["strategy"], line["learners"]) for line in lines] == [
        ("SyncSGD()", 1),
        ("KAVG(2)", 2),
        ("SuperLearners(ADPSGD(), 4)", 2),
        ("KAVG(2)", 4),
        ("SuperLearners(ADPSGD(), 4)", 4),
    ]
    assert lines[2]["loss"] is None
    assert lines[2]["note"] == "2 learners are fewer than the 4 of one node"
    for line in lines:
        if not line["cells"]:
            continue
        mine = [rows[name] for name in line["cells"]]
        alone = [rows[f"SyncSGD-1-virtual-seed{row['seed']}"] for row in mine]
        assert len(mine) == 2
        assert line["loss"] == statistics.fmean(row["heldout"]["loss"] for row in mine)
        assert line["hours"] == statistics.fmean(row["seconds"] for row in mine) / 3600
        speeds = [b["seconds"] / a["seconds"] for a, b in zip(mine, alone, strict=True)]
        assert math.isclose(line["speed_up"], statistics.fmean(speeds))
        assert math.isclose(line["efficiency"], line["speed_up"] / line["learners"])
    text = (tmp_path / "table.md").read_text()
    for line, cut in zip(lines, csv.DictReader((tmp_path / "table.csv").open()), strict=True):
        assert cut["loss"] == ("" if line["loss"] is None else repr(line["loss"]))
        assert cut["wer_low"] == ""
        assert ("-" if line["loss"] is None else f"{line['loss']:.4f}") in text


def test_what_is_finished_is_not_run_again_and_a_cut_row_is(tmp_path: Path, started: list[list[str]]) -> None:
    words = [*GRID, "--out", str(tmp_path)]
    assert murmur(words) == 0
    table = (tmp_path / "table.json").read_bytes()
    started.clear()
    assert murmur(words) == 0
    assert started == []
    assert (tmp_path / "table.json").read_bytes() == table
    rows = tmp_path / "cells.jsonl"
    rows.write_bytes(rows.read_bytes()[:-5])
    assert murmur(words) == 0
    assert started == []  # the run itself is there
    assert (tmp_path / "table.json").read_bytes() == table
    rows.write_bytes(rows.read_bytes()[:-5])
    last = "SuperLearners-ADPSGD-4-4-virtual-seed0"
    (tmp_path / "runs" / last / "simulated.json").unlink()  # as if it had been cut off
    assert murmur(words) == 0
    assert [words[words.index("--out") + 1] for words in started] == [str(tmp_path / "runs" / last)]
    assert "--resume" in started[0]
    started.clear()
    assert murmur([*words, "--seeds", "0,3"]) == 0  # more of it
    assert len(started) == 4


def test_another_cluster_makes_virtual_runs_anew(tmp_path: Path, started: list[list[str]]) -> None:
    def hours(seconds: str) -> list[float]:
        started.clear()
        assert murmur([*GRID, "--step-seconds", seconds, "--out", str(tmp_path)]) == 0
        lines = json.loads((tmp_path / "table.json").read_text())
        return [line["hours"] for line in lines if line["cells"]]

    fast = hours("0.1")
    slow = hours("10")
    assert len(started) == 4
    assert all("--force" in words for words in started)
    for few, many in zip(fast, slow, strict=True):
        assert math.isclose(many, 100 * few, rel_tol=0.2)
    assert hours("0.1") == fast  # rows of both clusters are kept
    assert started == []


def test_a_cell_that_fails_is_recorded_and_the_others_go_on(tmp_path: Path, started, capfd) -> None:
    words = [*GRID, "--set", "optimizer.lr=1e37", "--set", "most_skipped=1", "--out", str(tmp_path)]
    assert murmur(words) == 1
    rows = list(Rows(tmp_path / "cells.jsonl").read().values())
    assert len(rows) == len(started) == 4
    failed = [row for row in rows if row["status"] == "failed"]
    assert failed
    assert all(row["error"].startswith("status 1") and row["seconds"] is None for row in failed)
    assert "failed" in (tmp_path / "table.md").read_text()
    assert murmur(words) == 1
    assert len(started) == 4
    assert murmur([*words, "--retry"]) == 1
    assert len(started) == 4 + len(failed)
    capfd.readouterr()
    assert murmur([*words, "--set", "seed=3"]) == 1
    assert "give another --out" in capfd.readouterr().err


def test_a_dry_run_trains_nothing(tmp_path: Path, started, capfd) -> None:
    assert murmur([*GRID, "--learners", "2", "--out", str(tmp_path / "grid"), "--dry-run"]) == 0
    shown = capfd.readouterr().out
    assert started == []
    assert not (tmp_path / "grid").exists()
    assert shown.count("to do") == 4 + 2 + 1


@pytest.mark.processes
def test_real_cells_are_processes(tmp_path: Path) -> None:
    words = ["compare", "toy", "--strategies", "KAVG(2)", "--learners", "2", *SMALL, "--threads", "1"]
    assert murmur([*words, "--out", str(tmp_path)]) == 0
    rows = {row["name"]: row for row in Rows(tmp_path / "cells.jsonl").read().values()}
    two = rows["KAVG-2-2-processes-seed0"]
    assert two["kind"] == "processes"
    assert two["sent_bytes"] is None
    assert len(two["compute_seconds"]) == 2
    assert sum(two["compute_seconds"]) > 0
    assert 0 <= two["waiting_share"] <= 1
    assert two["command"][1] == "train"
