"""A loop that does not catch the loss of another learner ends with one line, and the status that launchers know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

PROGRAM = """
import os, signal, sys, time
import torch
import murmur
from murmur.strategies import SyncSGD

model = torch.nn.Linear(2, 1)
with murmur.join(SyncSGD(), model, torch.optim.SGD(model.parameters(), 0.01)) as me:
    for n in range(1000):
        if me.rank == 1 and n == 5:
            if sys.argv[1] == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyError("an error of its own")
        if n == 5 and sys.argv[1] == "fails first":
            time.sleep(5)  # until the launcher has given the other learner up
        model(torch.ones(4, 2)).mean().backward()
        me.step()
"""


@pytest.mark.parametrize("fate", ["dies", "fails", "fails first"])
def test_a_loss_is_one_line(fate: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "murmur", "launch", "--learners", "2", "--on-failure", "alone", str(program), fate]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
    lines = [line for line in done.stderr.splitlines() if "start all learners again" in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("murmur: ")
    assert "learner 1 on " in lines[0]
    assert done.stderr.count("Traceback") == (0 if fate == "dies" else 1)
    assert "KeyError" in done.stderr or fate == "dies"
    assert done.returncode == (75 if fate == "dies" else 1)
