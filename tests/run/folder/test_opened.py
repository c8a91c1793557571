"""Folders of runs: new ones are named by date, old ones are replaced only on request, foreign files stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from murmur.core.errors import SettingError
from murmur.engine import task
from murmur.run.folder import contents
from murmur.run.folder.contents import LATEST, holds_work, opened, remove_run
from murmur.run.folder.lock import LOCK, Ending, read_ending, state_of

FACTS = {"experiment": {"strategy": {"type": "murmur.strategies.kavg.KAVG", "K": 4}}, "learners": 2, "source": "toy"}


def leave_run(folder: Path) -> None:
    """Write the files of a finished run."""
    with opened(folder, "toy", resume=False, force=False) as run:
        run.begin()
        (folder / "run.json").write_text(json.dumps({**FACTS, "started": "2026-01-02T03:04:05+00:00"}))
        for name in ("records.jsonl", "model.json", "model.safetensors", "score.json", "trace-until-3.json"):
            (folder / name).write_text("{}\n")
        kept = ("0000000003/learner-0.json", "marks/0000000003.json", "began.json")
        reports = ("errors/network-test.txt", "decoded/errors/network-dev.txt")
        for name in (*(f"checkpoints/{file}" for file in kept), *reports):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("{}")
        run.end(0)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_run_is_refused_with_what_is_there_and_the_ways_on(tmp_path: Path) -> None:
    leave_run(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path) - {LOCK}}
    with pytest.raises(SettingError) as refused, opened(tmp_path, "toy", resume=False, force=False):
        pass
    for told in ("toy, KAVG(K=4), 2 learners, finished, started 2026-01-02", "--resume", "--out", "--force"):
        assert told in str(refused.value)
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path) - {LOCK}} == before


def test_force_removes_what_the_run_wrote_and_nothing_else(tmp_path: Path) -> None:
    leave_run(tmp_path)
    own = {"notes.txt", "checkpoints/keep.me", "models/model.safetensors", "learner-0.json", "errors/mine.md"}
    own |= {"checkpoints/0000000003.bak/learner-0.json"}  # a copy of a checkpoint
    for name in own:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    with opened(tmp_path, "toy", resume=False, force=True) as run:
        assert holds_work(tmp_path)  # until all checks have passed
        run.begin()
    assert files(tmp_path) == own | {LOCK}
    remove_run(tmp_path)
    assert files(tmp_path) == own | {LOCK}


def test_a_run_that_never_began_changes_nothing(tmp_path: Path) -> None:
    leave_run(tmp_path / "old")
    before = files(tmp_path)
    for folder, resume, force in (("old", True, False), ("old", False, True), ("new", False, False)):
        with pytest.raises(ValueError, match="no such data"), opened(tmp_path / folder, "toy", resume, force):
            raise ValueError("no such data")
    assert files(tmp_path) == before
    assert not (tmp_path / "new").exists()
    assert state_of(tmp_path / "old").name == "finished"


def test_a_folder_without_work_may_be_used(tmp_path: Path) -> None:
    """The folder holds a run that failed before its first minibatch, or the user's own files."""
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "records.jsonl").write_text("")
    with opened(tmp_path, "toy", resume=False, force=False) as run:
        run.begin()
    assert files(tmp_path) == {"notes.txt", LOCK}


def test_the_default_folder_is_new_every_time_and_latest_points_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = []
    for _ in range(3):
        with opened(LATEST, "toy", resume=False, force=False) as run:
            run.begin()
            (run.out / "records.jsonl").write_text("{}\n")
            places.append(run.out)
        assert LATEST.resolve() == run.out.resolve()
    assert len(set(places)) == 3
    assert all(place.name[:2] == "20" and "-toy" in place.name for place in places)
    with opened(LATEST, "toy", resume=True, force=False) as run:
        assert run.out == places[-1]  # not the link, which may change during this run
    (LATEST / "records.jsonl").unlink()
    places[-1].rename("runs/moved")
    with pytest.raises(SettingError, match="not a folder: name the run's folder"), opened(LATEST, "t", True, False):
        pass
    assert sorted(path.name for path in Path("runs").iterdir()) == sorted(
        ["latest", "moved", *(place.name for place in places[:-1])]
    )


def test_to_resume_nothing_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with opened(LATEST, "toy", resume=True, force=False) as run:
        run.begin()
        assert run.out.name.endswith("-toy")
    with opened(tmp_path / "named", "toy", resume=True, force=False) as run:
        run.begin()
    with pytest.raises(SettingError, match="give one of them"), opened(tmp_path, "toy", resume=True, force=True):
        pass


def test_a_folder_named_latest_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    leave_run(Path("runs/old"))
    Path("runs/old").rename(LATEST)
    with opened(LATEST, "toy", resume=False, force=False) as run:
        run.begin()
    assert "is a folder, not a link" in caplog.text
    assert (LATEST / "score.json").is_file()
    assert not (run.out / "score.json").exists()
    with opened(LATEST, "toy", resume=True, force=False) as run:
        assert run.out == LATEST


def test_how_a_run_stands(tmp_path: Path) -> None:
    with opened(tmp_path, "toy", resume=False, force=False) as run:
        run.begin()
        assert state_of(tmp_path).name == "running"
    assert state_of(tmp_path).name == "killed"  # no final record
    for status, name in ((79, "stopped"), (75, "failed"), (1, "failed"), (0, "finished")):
        with opened(tmp_path, "toy", resume=True, force=False) as run:
            run.begin()
            assert read_ending(tmp_path) is None
            assert run.end(status) == status
        assert state_of(tmp_path).name == name

    def interrupted() -> None:
        with opened(tmp_path, "toy", resume=True, force=False) as run:
            run.begin()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert str(state_of(tmp_path)).startswith("failed (KeyboardInterrupt")
    (tmp_path / "ended.json").write_text('{"state": "going"}')
    assert state_of(tmp_path).name == "killed"
    assert Ending.of(7).why == "ended with status 7"


def test_the_folder_of_error_reports_is_that_of_tasks() -> None:
    """The name stands in two modules, because the list of a run's files loads no PyTorch."""
    assert contents.REPORTS == task.REPORTS
