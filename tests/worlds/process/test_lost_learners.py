"""Real processes that are killed or stopped while an asynchronous strategy trains: the others go on."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.watched_run import BORNE, Run, learners_of

pytestmark = pytest.mark.processes


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 2])
def test_the_others_go_on_without_a_killed_learner(rank: int, tmp_path: Path) -> None:
    run = Run(tmp_path, *BORNE)
    run.until(60)
    os.kill(learners_of(run.process.pid)[rank], signal.SIGKILL)
    assert run.end() == 0
    steps = [r for r in run.records() if r["kind"] == "step"]
    assert 398 <= len(steps) <= 402  # another learner does the minibatch of the lost one
    assert {r["learner"] for r in steps[200:]} == {0, 1, 2} - {rank}
    assert (run.out / "model.safetensors").exists()
    assert json.loads((run.out / "score.json").read_text())["test"]


@pytest.mark.interpreter  # a forked learner is back before the others notice
@pytest.mark.timeout(300)
def test_a_killed_learner_comes_back(tmp_path: Path) -> None:
    run = Run(tmp_path, "--restarts", "1", "--set", "budget.epochs=2", *BORNE)
    run.until(40)
    os.kill(learners_of(run.process.pid)[1], signal.SIGKILL)
    run.until(len(run.records()) + 30)
    run.await_learner(1)
    assert run.end() == 0
    steps = [r for r in run.records() if r["kind"] == "step"]
    mine = [i for i, r in enumerate(steps) if r["learner"] == 1]
    assert max(mine) > 700, "it takes part again"
    assert any(later - earlier > 20 for earlier, later in pairwise(mine)), "it was away"
    assert 798 <= len(steps) <= 802


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("fate", ["killed", "stopped"])
def test_k_step_averaging_goes_on_and_lets_a_learner_in_again(fate: str, tmp_path: Path) -> None:
    borne = BORNE if fate == "killed" else ("--lease-seconds", "5")
    run = Run(tmp_path, "--restarts", "1", "--strategy", "KAVG(K=4)", "--set", "budget.epochs=3", *borne)
    run.until(40)
    lost = learners_of(run.process.pid)[0]
    os.kill(lost, signal.SIGKILL if fate == "killed" else signal.SIGSTOP)
    run.until(len(run.records()) + 100)  # the others go on
    if fate == "stopped":
        os.kill(lost, signal.SIGCONT)
    run.await_learner(0)
    assert run.end() == 0
    steps = [r for r in run.records() if r["kind"] == "step"]
    assert max(i for i, r in enumerate(steps) if r["learner"] == 0) > 1100, "it takes part again"
    assert 1200 <= len(steps) <= 1204  # at most one round's minibatches are done twice, none is left out
    assert (run.out / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_learners_that_all_considered_each_other_lost_form_a_group(tmp_path: Path) -> None:
    """Two are stopped; the third goes on, and is stopped when one of them runs again: no learner can admit it."""
    run = Run(tmp_path, "--strategy", "KAVG(K=4)", "--set", "budget.epochs=3", "--lease-seconds", "3")
    run.until(40)
    learners = learners_of(run.process.pid)
    for rank in (0, 1):
        os.kill(learners[rank], signal.SIGSTOP)
    run.until(len(run.records()) + 100)
    os.kill(learners[2], signal.SIGSTOP)
    os.kill(learners[0], signal.SIGCONT)
    run.until(len(run.records()) + 100)
    for rank in (1, 2):
        os.kill(learners[rank], signal.SIGCONT)
    for rank in range(3):
        run.await_learner(rank)
    assert run.end() == 0
    steps = [r for r in run.records() if r["kind"] == "step"]
    assert len(steps) > 1200, "what only the lost had done is done again"
    assert run.records()[-1]["kind"] == "evaluation"
    assert run.records()[-1]["minibatches"] == 1200


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_lock_step_starts_again_and_ends_with_the_same_bits(number: signal.Signals, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    runs = []
    for folder, restarts in ((whole, "0"), (broken, "1")):
        folder.mkdir()
        runs.append(Run(folder, "--strategy", "SyncSGD()", "--restarts", restarts))
        if folder == broken:
            runs[1].until(random.Random(str(number)).randrange(120, 300))
            os.kill(learners_of(runs[1].process.pid)[1], number)
        assert runs[-1].end(250) == 0
    first, second = ((run.out / "model.safetensors").read_bytes() for run in runs)
    assert first == second


@pytest.mark.timeout(300)
def test_lock_step_without_restarts_ends_soon(tmp_path: Path) -> None:
    run = Run(tmp_path, "--strategy", "SyncSGD()")
    run.until(90)
    os.kill(learners_of(run.process.pid)[2], signal.SIGSTOP)
    stopped = time.monotonic()
    assert run.end() == 75
    assert time.monotonic() - stopped < 20  # the error after about one second, then interpreters end
