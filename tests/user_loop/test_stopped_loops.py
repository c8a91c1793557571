"""Graceful stop of joined loops: a request to one learner ends all of them, in lock-step after the same step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.watched_run import learners_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

PROGRAM = """
import json, sys, time
from pathlib import Path
import torch
import murmur
from murmur.strategies import *

strategy, out = eval(sys.argv[1]), Path(sys.argv[2])
model = torch.nn.Linear(2, 1)
with murmur.join(strategy, model, torch.optim.SGD(model.parameters(), 0.01)) as me:
    while True:
        model(torch.ones(4, 2)).mean().backward()
        me.step()
        time.sleep(0.01)
        if me.should_stop:
            (out / f"saved {me.rank}").write_text(json.dumps(me.state_dict()["steps"]))
            sys.exit(murmur.STOPPED_STATUS)
        (out / f"begun {me.rank}").touch()
"""

STRATEGIES = ["SyncSGD()", "DelayByOne()", "SuperLearners(SyncSGD(), 2)", "Compressed(KAVG(4))"]


def stopped(folder: Path, strategy: str, learners: int, of_launcher: bool) -> tuple[int, str, list[int]]:
    """Ask one learner or the launcher to stop; return the status, the messages, and the steps that each has saved."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "murmur", "launch", "--learners", str(learners), "--threads", "1"]
    words = [*command, str(program), strategy, str(folder)]
    launch = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    while len(list(folder.glob("begun *"))) < learners:
        assert launch.poll() is None
        time.sleep(0.05)
    if of_launcher:
        launch.terminate()
    else:
        os.kill(learners_of(launch.pid)[-1], signal.SIGUSR1)
    _, said = launch.communicate(timeout=200)
    return launch.returncode, said, [json.loads(path.read_text()) for path in sorted(folder.glob("saved *"))]


@pytest.mark.parametrize("of_launcher", [True, False], ids=["launcher", "learner"])
def test_learners_in_lock_step_leave_after_the_same_step(of_launcher: bool, tmp_path: Path) -> None:
    status, said, saved = stopped(tmp_path, "KAVG(4)", 2, of_launcher)
    assert status == 79, said
    assert len(saved) == 2
    assert len(set(saved)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", ["SyncSGD()", "DelayByOne()", "SuperLearners(SyncSGD(), 2)", "Compressed(KAVG(4))"]
)
def test_all_lock_step_strategies_leave_together(strategy: str, tmp_path: Path) -> None:
    learners = 3 if "Super" in strategy else 2
    status, said, saved = stopped(tmp_path, strategy, learners, of_launcher=False)
    assert (status, len(saved), len(set(saved))) == (79, learners, 1), said


def test_learners_without_lock_step_all_leave(tmp_path: Path) -> None:
    status, said, saved = stopped(tmp_path, "ADPSGD()", 2, of_launcher=False)
    assert (status, len(saved)) == (79, 2), said
