"""Folders of runs, by the command line: launches that would overwrite a run or share its folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app
from murmur.run.folder.lock import state_of
from murmur.worlds.process.signals import STOPPED_STATUS

pytestmark = pytest.mark.processes
SHORT = ["--set", "budget.minibatches=40", "--set", "task.hidden=8", "--threads", "1"]
LONG = ["--set", "budget.epochs=2000", "--set", "task.hidden=8", "--threads", "1"]


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def start(*words: object, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "murmur", *map(str, words)]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, **both, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **variables})  # type: ignore[call-overload]


def learners(*words: object, size: int = 2) -> list[subprocess.Popen[str]]:
    """Start learners like srun: each by itself, with its number in the environment."""
    job = {"SLURM_STEP_NUM_TASKS": str(size), "SLURM_STEP_TASKS_PER_NODE": str(size), "SLURM_STEP_ID": "0"}
    job["SLURM_JOB_ID"] = f"{os.getpid()}-{time.monotonic_ns()}"
    return [start("train", *words, SLURM_PROCID=str(n), SLURM_LOCALID=str(n), **job) for n in range(size)]


def ended(processes: list[subprocess.Popen[str]]) -> tuple[list[int], str]:
    said = [process.communicate(timeout=120)[0] for process in processes]
    return [process.returncode for process in processes], "\n".join(said)


def wait_for_records(out: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 100
    path = out / "records.jsonl"
    while not (path.exists() and path.stat().st_size) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()[0]


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def contents(folder: Path) -> dict[str, bytes]:
    return {path: data for path, data in everything(folder).items() if Path(path).name != ".lock"}


@pytest.mark.timeout(240)
def test_a_finished_run_is_not_overwritten_unasked(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run("train", "toy", "--out", out, *SHORT)[0] == 0
    assert state_of(out).name == "finished"
    before = contents(out)
    code, said = run("train", "toy", "--out", out, "--strategy", "KAVG(K=2)", *SHORT)
    assert code == 1
    for told in (f"{out} holds a run already", "1 learner, finished, started 20", "--resume", "--out", "--force"):
        assert told in said
    code, said = run("train", "toy", "--out", out, "--learners", 2, *SHORT)
    assert code == 1
    assert contents(out) == before
    (out / "notes.txt").write_text("mine")
    code, said = run("train", "toy", "--out", out, "--strategy", "KAVG(K=2)", "--force", *SHORT)
    assert code == 0, said
    assert (out / "notes.txt").read_text() == "mine"
    assert json.loads((out / "run.json").read_text())["strategy"] == "KAVG(K=2)"


@pytest.mark.timeout(240)
def test_a_refused_resume_changes_nothing(tmp_path: Path) -> None:
    """A checkpoint that does not fit is refused by a single learner, and before several are started."""
    assert run("train", "toy", "--out", tmp_path, *SHORT)[0] == 0
    refused = {
        "task.hidden=9": "it is of another experiment",
        "budget.minibatches=20": "that after 40 minibatches, beyond the budget of 20: give a budget of at least",
        "optimizer.lr=-1": "Invalid learning rate",
        "optimizer.lr=0.01": "optimizer.lr was 0.1 and is 0.01 now without effect: leave this setting as it was, or",
    }
    before = everything(tmp_path)
    for setting, why in refused.items():
        for learners in (1, 2):
            words = ("--set", setting, "--learners", learners)
            code, said = run("train", "toy", "--out", tmp_path, "--resume", *SHORT, *words)
            assert code == 1
            assert why in said
            assert everything(tmp_path) == before
    code, said = run("watch", tmp_path, "--once")
    assert code == 0
    assert said.startswith("finished")


@pytest.mark.timeout(240)
def test_a_finished_run_keeps_the_number_of_its_learners(tmp_path: Path) -> None:
    """A resumed run without a minibatch left is only tested; one with a larger budget trains with the new learners."""
    assert run("train", "toy", "--out", tmp_path, "--learners", 2, *SHORT)[0] == 0
    for words, learners in (((), 2), (("--set", "budget.minibatches=48"), 1)):
        code, said = run("train", "toy", "--out", tmp_path, "--resume", *SHORT, *words)
        assert code == 0, said
        facts = json.loads((tmp_path / "run.json").read_text())
        assert (facts["learners"], facts["scaling"]["learners"]) == (learners, learners)


@pytest.mark.timeout(240)
def test_a_second_run_into_the_folder_of_a_running_one_is_refused(tmp_path: Path) -> None:
    first = start("train", "toy", "--out", tmp_path, "--learners", 2, *LONG)
    try:
        wait_for_records(tmp_path, first)
        assert state_of(tmp_path).name == "running"
        for words in ((), ("--resume",), ("--force",)):
            code, said = run("train", "toy", "--out", tmp_path, *LONG, *words)
            assert code == 1
            assert "in use by process" in said or "holds a run already: toy" in said
            assert words == () or f"in use by process {first.pid} on " in said
        assert first.poll() is None
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == STOPPED_STATUS
    finally:
        first.kill()
        first.communicate()
    assert str(state_of(tmp_path)).startswith("stopped (")
    assert run("watch", tmp_path, "--once")[1].startswith("stopped")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_killed_run_is_called_that_and_goes_on(tmp_path: Path) -> None:
    first = start("train", "toy", "--out", tmp_path, "--learners", 2, *LONG)
    wait_for_records(tmp_path, first)
    first.kill()
    first.communicate()
    deadline = time.monotonic() + 60
    while state_of(tmp_path).name == "running" and time.monotonic() < deadline:  # its learners end with the launcher
        time.sleep(0.05)
    assert state_of(tmp_path).name == "killed"
    said = run("watch", tmp_path, "--once")[1]
    assert said.startswith("killed")
    assert "--resume" in said
    code, said = run("train", "toy", "--out", tmp_path, "--resume", *SHORT)
    assert code == 0, said
    assert state_of(tmp_path).name == "finished"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_learners_of_another_launcher_share_a_folder_and_are_refused_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    codes, said = ended(learners("toy", *SHORT))
    assert codes == [0, 0], said
    (folder,) = (path for path in Path("runs").iterdir() if not path.is_symlink())
    assert Path("runs/latest").resolve() == folder.resolve()
    assert state_of(folder).name == "finished"
    assert json.loads((folder / "run.json").read_text())["learners"] == 2
    before = contents(folder)
    codes, said = ended(learners("toy", "--out", folder, *SHORT))
    assert codes == [1, 1], said
    assert "holds a run already" in said
    assert "learner 0 refuses to begin" in said
    codes, said = ended(learners("toy", "--out", folder, "--resume", *SHORT, "--set", "task.hidden=9"))
    assert codes == [1, 1], said
    assert contents(folder) == before
    codes, said = ended(learners("toy", "--resume", *SHORT))
    assert codes == [0, 0], said
    assert "going on from" in said


@pytest.mark.timeout(240)
def test_learners_that_do_not_agree_write_nothing(tmp_path: Path) -> None:
    first, _ = learners("toy", "--out", tmp_path / "run", *SHORT), None
    assert ended(first)[0] == [0, 0]
    before = contents(tmp_path / "run")
    job = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_ID": "0"}
    job["SLURM_JOB_ID"] = f"{os.getpid()}-{time.monotonic_ns()}"
    both = [
        start("train", "toy", "--out", tmp_path / "run", "--resume", "--set", f"seed={n}", *SHORT,
              SLURM_PROCID=str(n), SLURM_LOCALID=str(n), **job)
        for n in range(2)
    ]  # fmt: skip
    codes, said = ended(both)
    assert codes == [1, 1], said
    assert "not all are equal" in said
    assert contents(tmp_path / "run") == before


@pytest.mark.timeout(240)
def test_a_failure_is_recorded_with_its_reason(tmp_path: Path) -> None:
    """A single learner fails in this process; the first of two that fails ends the other one."""
    diverges = ("--set", "optimizer.lr=1e38", "--set", "most_skipped=1")
    for count in (1, 2):
        out = tmp_path / f"{count}"
        assert run("train", "toy", "--out", out, "--learners", count, *SHORT, *diverges)[0] == 1
        why = json.loads((out / "ended.json").read_text())["why"]
        assert "training has diverged" in why
        assert ("learner " in why) == (count == 2)
        assert not (out / "failed.json").exists()
        assert run("watch", out, "--once")[1].startswith("failed")
        assert why[:40] in run("watch", out, "--once")[1]
