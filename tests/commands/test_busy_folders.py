"""Long-running commands lock the folder that they write; a second one names the holder of the lock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.run.folder.lock import LOCK, beside, locked, state_of

GRID = ["--strategies", "KAVG(2)", "--virtual", "2", "--step-seconds", "0.1"]
SMALL = ["--set", "budget.minibatches=20", "--set", "task.hidden=8", "--threads", "1"]
VIRTUAL = ["--learners", "2", "--step-seconds", "0.1"]


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("words", "lock"),
    [
        (["train", "toy", "--out", "OUT", *SMALL], LOCK),
        (["simulate", "toy", "--out", "OUT", *SMALL, *VIRTUAL], LOCK),
        (["simulate", "toy", "--out", "OUT", *SMALL, *VIRTUAL, "--strategy", "KAVG", "--strategy", "ADPSGD"], LOCK),
        (["compare", "toy", "--out", "OUT", *GRID], LOCK),
        (["demo", "--out", "OUT"], LOCK),
        (["papers", "--rows", "ROWS", "--out", "OUT"], LOCK),
        (["prepare", "yesno", "--from", "FOLDER", "--out", "OUT"], None),
        (["prepare", "FOLDER", "--out", "OUT"], None),
        (["export", "FOLDER", "--out", "OUT"], None),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, list) else "",
)
def test_a_folder_in_use_is_refused(words: list[str], lock: str | None, tmp_path: Path) -> None:
    out, rows = tmp_path / "out", tmp_path / "rows.jsonl"
    rows.write_text("")
    (tmp_path / "folder").mkdir()
    for name in ("text", "wav.scp"):
        (tmp_path / "folder" / name).write_text("")
    places = {"OUT": str(out), "ROWS": str(rows), "FOLDER": str(tmp_path / "folder")}
    with locked(out / lock if lock else beside(out)):
        code, said = run(*(places.get(word, word) for word in words))
    assert code == 1
    assert f"is in use by process {os.getpid()} on " in said
    assert {path.name for path in out.rglob("*")} <= {LOCK}


def test_simulated_runs_are_not_overwritten_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    both = ["--strategy", "KAVG(K=2)", "--strategy", "SyncSGD"]
    for chosen, folders in (([], [out / "one"]), (both, [out / "two" / "KAVG-K-2", out / "two" / "SyncSGD"])):
        words = ["simulate", "toy", *SMALL, *VIRTUAL, *chosen, "--out", folders[0] if not chosen else out / "two"]
        assert run(*words)[0] == 0
        assert [state_of(folder).name for folder in folders] == ["finished"] * len(folders)
        before = [(folder / "records.jsonl").stat().st_mtime_ns for folder in folders]
        code, said = run(*words)
        assert code == 1
        assert "holds a run already: toy" in said
        assert [(folder / "records.jsonl").stat().st_mtime_ns for folder in folders] == before
        assert run(*words, "--force")[0] == 0
        assert [(folder / "records.jsonl").stat().st_mtime_ns for folder in folders] != before
    monkeypatch.chdir(tmp_path)
    assert run("simulate", "toy", *SMALL, *VIRTUAL)[0] == 0
    assert run("simulate", "toy", *SMALL, *VIRTUAL, *both)[0] == 0
    assert len([path for path in Path("runs").iterdir() if "toy-simulated" in path.name]) == 2
    assert {path.name for path in Path("runs/latest").iterdir() if path.is_dir()} == {"KAVG-K-2", "SyncSGD"}


def test_a_page_of_another_origin_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "papers.md").write_text("my notes")
    (tmp_path / "rows.jsonl").write_text("")
    code, said = run("papers", "--rows", tmp_path / "rows.jsonl", "--out", tmp_path)
    assert code == 1
    assert "was not written by murmur papers" in said
    assert (tmp_path / "papers.md").read_text() == "my notes"
