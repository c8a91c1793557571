"""`murmur train --dry-run`: lists unprepared data first, and times steps after a warm-up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from torch import Tensor
from typer.testing import CliRunner

from murmur.cli import app

pytest.importorskip("kaldi_hmm_gmm", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.core import path_checks as checks
from murmur.recipes import toy
from murmur.run import dry_run, preparation, timed
from murmur.run.configuration import resolved
from murmur.speech.tasks.ctc import CtcTask
from murmur.speech.tasks.prepared import systems_to_make
from tests.support.plateaus import make_experiment


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_what_is_not_prepared_is_told_first_and_made_only_where_wanted(tmp_path: Path) -> None:
    file = make_experiment(tmp_path)
    look = ("train", file, "--dry-run", "--threads", 1, "--out", tmp_path / "run")
    code, said = run(*look, "--no-prepare")
    assert code == 0, said
    lines = said.splitlines()
    assert lines[0] == "HybridTask, 1 learner, 6 epochs"
    assert "strategy: SyncSGD()" in lines
    assert any(line.startswith("not prepared: features of train, dev") for line in lines)
    assert any(line.startswith("not prepared: monophone system, 6 passes over") for line in lines)
    assert any(line.startswith("to prepare: about ") for line in lines)
    assert "need the prepared data" in said
    assert not (tmp_path / "cache").exists()

    code, said = run(*look)
    assert code == 0, said
    begins = [said.index(words) for words in ("to prepare: about", "a dry run prepares this data", "first minibatch:")]
    assert begins == sorted(begins)
    assert "preparing the data: " in said  # with its seconds
    assert not (tmp_path / "run").exists()
    code, said = run(*look, "--no-prepare")  # all data is prepared now, so all lines appear
    assert code == 0, said
    assert "prepared: all data for training exists" in said
    assert "first minibatch:" in said
    assert "not prepared" not in said


def test_without_steps_no_gradient_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "first_steps", None)
    code, said = run("train", "toy", "--dry-run", "--no-steps", "--threads", 1, "--out", tmp_path / "run")
    assert code == 0, said
    assert "9,610" in said  # 64 x 128 + 128 + 128 x 10 + 10
    assert "first minibatch: [0] (32, 64) float32" in said
    assert "budget: 400 minibatches = 4.00 epochs" in said
    assert "loss" not in said
    code, said = run("train", "toy", "--no-steps", "--out", tmp_path / "run")
    assert code == 1
    assert "--no-steps is for --dry-run" in said


def test_features_of_ctc(tmp_path: Path) -> None:
    file = make_experiment(tmp_path)
    task = CtcTask(corpus=tmp_path / "set", cache=tmp_path / "cache")
    assert [each.what.partition(" (")[0] for each in task.unprepared()] == ["features of train, dev, test"]
    task.prepare()
    assert task.unprepared() == []
    assert resolved(str(file)).task.unprepared() != []  # type: ignore[attr-defined]


def test_no_prepare_is_for_dry_runs(tmp_path: Path) -> None:
    code, said = run("train", "toy", "--no-prepare", "--out", tmp_path / "run")
    assert code == 1
    assert "--no-prepare is for --dry-run" in said


@pytest.mark.parametrize(
    ("recipe", "setting"),
    [
        ("hybrid", "task.front.bins=0"),
        ("hybrid", "task.front.speeds=(-1.0, 1.0)"),
        ("hybrid", "task.chunks.size=0"),
        ("hybrid", "task.chunks.left_frames=-1"),
        ("toy", "task.samples=0"),
    ],
)
def test_sizes_that_cannot_be_are_refused_before_anything_is_prepared(recipe: str, setting: str) -> None:
    code, said = run("train", recipe, "--dry-run", "--no-prepare", "--set", setting)
    assert code == 1
    assert said.startswith(f"murmur: {setting.partition('=')[0]}")
    assert "Traceback" not in said


def test_there_is_room_for_what_is_to_be_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = resolved(str(make_experiment(tmp_path))).task
    needed = checks.LEAST_BYTES + sum(each.size_bytes for each in preparation.to_prepare(task))
    monkeypatch.setattr(checks, "free_bytes", lambda _: needed - 1)
    with pytest.raises(ValueError, match=r"task.cache .*cache: .* MB are free"):
        preparation.to_prepare(task)
    monkeypatch.setattr(checks, "free_bytes", lambda _: needed)
    assert preparation.to_prepare(task)


def test_estimates_grow_with_the_work(tmp_path: Path) -> None:
    hmm = resolved(str(make_experiment(tmp_path))).task.hmm  # type: ignore[attr-defined]
    stages = {"monophone": hmm.monophone}
    one, two = (systems_to_make(stages, hours, tmp_path, 1)[0].seconds for hours in (1.0, 2.0))
    assert two == pytest.approx(2 * one)
    assert systems_to_make(stages, 2.0, tmp_path, 2)[0].seconds == pytest.approx(one)


@dataclass(frozen=True)
class Cold(toy.ToyTask):
    """Task whose minibatches take 1.9 s on its own clock the first time, and 0.13 s later."""

    def minibatch(self, n: int) -> tuple[Tensor, Tensor]:
        CLOCK.now += 0.13 if n in CLOCK.seen else 1.9
        CLOCK.seen.add(n)
        return super().minibatch(n)


class Clock:
    now = 0.0
    seen: set[int]

    def perf_counter(self) -> float:
        return self.now


CLOCK = Clock()


def test_seconds_a_step_are_those_after_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    CLOCK.seen = set()
    monkeypatch.setattr(dry_run, "time", CLOCK)
    experiment = replace(toy.experiment(), task=Cold())
    first = dry_run.first_steps(experiment, experiment.task.model(), "cpu")
    assert first.step_seconds == pytest.approx(0.13)
    assert first.fastest_seconds == pytest.approx(0.13)
    assert first.steps == dry_run.TIMED


def test_how_busy_the_machine_was_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "cores_here", lambda: 2)
    monkeypatch.setattr(timed.os, "getloadavg", lambda: (7.25, 0.0, 0.0))
    code, said = run("train", "toy", "--dry-run", "--threads", 1, "--out", tmp_path / "run")
    assert code == 0
    assert "this machine was busy (load average 7.2, 2 cores): other work lengthened the times above" in said
    assert "fastest 0." in said
    missing = resolved(str(make_experiment(tmp_path))).task.unprepared()  # type: ignore[attr-defined]
    assert "on an idle machine (this one is busy: 4.1 times as long)" in preparation.preparation_lines(missing)[-1]
    monkeypatch.setattr(timed.os, "getloadavg", lambda: (0.1, 0.0, 0.0))
    assert timed.busy_line() == "this machine was idle (load average 0.1, 2 cores)"
    assert "this one is busy" not in preparation.preparation_lines(missing)[-1]
