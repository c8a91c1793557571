"""Origin of a run: its files are found from any folder, and untrusted code never runs without consent."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from murmur.core.errors import SettingError
from murmur.run.origin import KEY, described_origin, is_of, located, paths_of, source_of


@dataclass(frozen=True)
class Inner:
    grammar: str = "lm/small.arpa"
    name: str = "loop"


@dataclass(frozen=True)
class Task:
    corpus: Path | None = Path("set")
    lexicon: Path = Path("lexicon.txt")
    model: Path = Path("old/model")
    absent: Path = Path("nowhere")
    cache: Path = Path("cache")
    inner: Inner = field(default_factory=Inner)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a working folder with a data set, a cache and more, and a separate home."""
    home, project = tmp_path / "home", tmp_path / "project"
    for folder in (home, project / "set", project / "cache", project / "old", project / "lm", project / "runs" / "a"):
        folder.mkdir(parents=True)
    for name in ("lexicon.txt", "set/lexicon.txt", "old/model.safetensors", "lm/small.arpa", "mine.py"):
        (project / name).write_text("")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(project)
    return project


def test_paths_are_found_from_anywhere_and_after_a_move(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dict(paths_of(Task())) == {
        "task.corpus": Path("set"),
        "task.model": Path("old/model"),
        "task.cache": Path("cache"),
        "task.inner.grammar": Path("lm/small.arpa"),
    }  # without the lexicon, which is part of the set
    run = json.loads(json.dumps(described_origin("toy", Task(), Path("runs/a"))))
    monkeypatch.chdir("/")
    expected = {"corpus": "set", "model": "old/model", "cache": "cache", "inner.grammar": "lm/small.arpa"}
    assert located(project / "runs/a", run) == [f"task.{name}={project / path}" for name, path in expected.items()]
    moved = project.with_name("moved")
    project.rename(moved)
    assert located(moved / "runs/a", run) == [f"task.{name}={moved / path}" for name, path in expected.items()]
    (moved / "cache").rmdir()
    (moved / "old/model.safetensors").unlink()
    with pytest.raises(SettingError) as refused:
        located(moved / "runs/a", run, ["task.model = elsewhere"])
    assert f"task.cache ({project / 'cache'}): give --set task.cache=PATH" in str(refused.value)
    assert "task.model" not in str(refused.value)


def test_a_file_of_the_users_own_is_run_without_a_question(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = described_origin("mine.py", Task(), project / "runs/a")
    key = Path.home() / KEY
    assert key.stat().st_mode & 0o777 == 0o600
    assert run["source_file"] == str(project / "mine.py")
    assert described_origin("mine.py", Task(), project / "runs/a") == run
    monkeypatch.chdir("/")
    run = {"source": "mine.py", **run}
    assert source_of(project / "runs/a", run, trust=False) == str(project / "mine.py")
    assert is_of(run, str(project / "mine.py"))
    assert is_of(run, "mine.py")
    assert not is_of(run, "other.py")


def test_a_file_of_another_user_or_machine_is_not_run_unasked(project: Path) -> None:
    own = {"source": "mine.py", **described_origin("mine.py", Task(), project / "runs/a")}
    evil = project / "runs/a/evil.py"
    evil.write_text("")
    forged = [
        {**own, "source_file": str(evil)},
        {**own, "signature": None},
        {**own, "signature": "00" * 32},
        {"source": str(evil)},
        {"source": os.path.relpath(evil)},
    ]
    for run in forged:
        with pytest.raises(SettingError, match="not written by you on this machine: read the file, then give --trust"):
            source_of(project / "runs/a", run, trust=False)
    assert source_of(project / "runs/a", forged[0], trust=True) == str(evil)
    (Path.home() / KEY).unlink()
    with pytest.raises(SettingError, match="--trust"):
        source_of(project / "runs/a", own, trust=False)
    described_origin("mine.py", Task(), project / "runs/a")  # another key
    with pytest.raises(SettingError, match="--trust"):
        source_of(project / "runs/a", own, trust=False)


def test_a_key_that_others_can_read_or_a_home_that_cannot_be_written_signs_nothing(project: Path) -> None:
    described_origin("mine.py", Task(), project / "runs/a")
    (Path.home() / KEY).chmod(0o644)
    assert described_origin("mine.py", Task(), project / "runs/a")["signature"] is None
    (Path.home() / KEY).unlink()
    (Path.home() / KEY).parent.rmdir()
    (Path.home() / KEY).parent.write_text("a file in the way")
    assert described_origin("mine.py", Task(), project / "runs/a")["signature"] is None


def test_a_recipe_needs_no_trust_and_what_is_missing_is_named(project: Path) -> None:
    assert source_of(project, {"source": "toy"}, trust=False) == "toy"
    with pytest.raises(SettingError, match="give --experiment"):
        source_of(project, {}, trust=False)
    with pytest.raises(SettingError, match=r"nothing\.py, which is not there"):
        source_of(project, {"source": "nothing.py"}, trust=True)
