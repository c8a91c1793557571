from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app

SHORT = ["--set", "budget.minibatches=24", "--set", "task.per_epoch=12", "--set", "task.hidden=8", "--threads", "1"]


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["simulate", *map(str, words)], env={"COLUMNS": "160"})
    return done.exit_code, done.output


def test_it_leaves_what_a_real_run_leaves_and_a_picture(tmp_path: Path) -> None:
    words = ["--learners", 4, "--strategy", "ADPSGD", "--step-seconds", 3600, "--straggler", "0=10x", "--jitter", 0.1]
    code, said = run("toy", *SHORT, *words, "--out", tmp_path)
    assert code == 0, said
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["simulated"]["kind"] == "v100-ethernet"
    assert facts["simulated"]["compute"]["factors"] == {"0": 10.0}
    found = json.loads((tmp_path / "simulated.json").read_text())
    assert found["hours"] == pytest.approx(
        24 / 3.1, rel=0.6
    )  # with a long end: the straggler's last gradient takes 10 h
    assert f"{found['marks'][-1]['figures']['loss']:.5g}" in said
    assert "virtual h" in said
    assert "held-out" in said  # the progress line
    assert "at virtual" in said
    assert (tmp_path / "simulated.png").stat().st_size > 10_000
    for name in ("records.jsonl", "trace.json", "model.safetensors", "score.json"):
        assert (tmp_path / name).exists()
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "virtual h" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_strategies_side_by_side_in_two_processes(tmp_path: Path) -> None:
    """The same bytes as in one process."""
    both = ["--strategy", "SyncSGD", "--strategy", "ADPSGD(mixing=randomized_ring)", "--weights", "none"]
    for jobs in (1, 2):
        words = ["--learners", 2, "--step-seconds", 0.1, "--jobs", jobs, "--out", tmp_path / str(jobs)]
        code, said = run("toy", *SHORT, *words, *both)
        assert code == 0, said
    for name in ("SyncSGD", "ADPSGD-mixing-randomized_ring"):
        one, two = (tmp_path / jobs / name for jobs in ("1", "2"))
        assert (one / "records.jsonl").read_bytes() == (two / "records.jsonl").read_bytes()
        assert not (one / "score.json").exists()
    assert (tmp_path / "2" / "simulated.png").exists()


def test_many_learners_without_gradients(tmp_path: Path) -> None:
    words = ["--learners", 128, "--step-seconds", 1, "--timing-only", "--set", "budget.minibatches=512"]
    code, said = run("toy", *words, "--strategy", "KAVG(K=2)", "--out", tmp_path)
    assert code == 0, said
    found = json.loads((tmp_path / "simulated.json").read_text())
    assert found["seconds"] == pytest.approx(4.0, rel=0.01)
    assert not (tmp_path / "records.jsonl").exists()


def test_a_part_of_the_budget_gives_its_hours(tmp_path: Path) -> None:
    words = ["--learners", 4, "--step-seconds", 9, "--timing-only", "--set", "budget.minibatches=80000"]
    code, said = run("toy", *words, "--strategy", "KAVG(K=2)", "--timed-minibatches", 80, "--out", tmp_path)
    assert code == 0, said
    assert "KAVG(K=2): 80 of 80000 minibatches were done; the whole budget takes 50" in said
    found = json.loads((tmp_path / "simulated.json").read_text())
    assert (found["minibatches"], found["budget_minibatches"]) == (80, 80_000)
    code, said = run("toy", "--timed-minibatches", 80, "--step-seconds", 1, "--out", tmp_path / "other")
    assert code == 1
    assert "--timed-minibatches is for --timing-only" in said


def test_a_step_is_measured_where_nothing_says_how_long_it_takes(tmp_path: Path) -> None:
    code, said = run("toy", *SHORT, "--learners", 2, "--weights", "none", "--out", tmp_path)
    assert code == 0, said
    assert "a gradient takes 0." in said


def test_a_run_ended_by_a_fault_counts_as_a_failure(tmp_path: Path) -> None:
    words = ["--learners", 3, "--step-seconds", 1, "--kill", "1@3.5s", "--strategy", "SyncSGD", "--out", tmp_path]
    code, said = run("toy", *SHORT, *words)
    assert code == 1
    assert "murmur: SyncSGD: " in said
    assert "learner 1 was killed at t=3.500s" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cluster", "v100-ethernt"], "there is no cluster 'v100-ethernt'; did you mean 'v100-ethernet'?"),
        (["--learners", "64", "--nodes", "2"], "Cluster.learners=64 do not fit into Cluster.nodes=2"),
        (["--straggler", "0:10"], "--straggler '0:10': write LEARNER=FACTORx"),
        (["--straggler", "9=2x"], "--straggler '9=2x': there are learners 0..7"),
        (["--kill", "9@1s"], "--kill '9@1s': there are learners 0..7"),
        (["--stop", "1@1s"], "--stop '1@1s': write LEARNER@TIME+DURATION"),
        (["--rejoin", "1@1s"], "--rejoin '1@1s': learner 1 is not killed before 1 s"),
        (["--strategy", "KVAG"], "there is no 'KVAG'; did you mean 'KAVG'?"),
        (["--strategy", "KAVG", "--strategy", "KAVG"], "--strategy 'KAVG' is named twice"),
        (["--strategy", "KAVG", "--strategy", "KAVG(K=8)"], "'KAVG(K=8)' and 'KAVG' are the same: name it once"),
        (["--timing-only", "--resume"], "--timing-only writes no checkpoints to --resume from"),
        (["--model-bytes", "-1"], "Cluster.message_bytes must be finite and not negative, got -1"),
        (["--trace", "nowhere.json"], "--trace nowhere.json sets times and jitter"),
    ],
)
def test_mistakes_are_told_before_anything_is_run(words: list[str], message: str, tmp_path: Path) -> None:
    code, said = run("toy", "--step-seconds", "1", *words, "--out", tmp_path / "out")
    assert code == 1, said
    assert message in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()
