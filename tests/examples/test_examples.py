"""The examples, started as their docstrings say, on two processes."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def launched(name: str) -> str:
    command = [sys.executable, "-m", "murmur", "launch", "--learners", "2", "--threads", "1", str(EXAMPLES / name)]
    run = subprocess.run(command, check=False, timeout=110, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


@pytest.mark.processes
def test_my_own_loop() -> None:
    found = re.fullmatch(r"2 learners, ([\d.]+)% of unseen points right\n", launched("my_own_loop.py"))
    assert found is not None
    assert float(found[1]) > 97


@pytest.mark.processes
def test_sharded_learners() -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command = [sys.executable, *words, str(EXAMPLES / "sharded_learners.py")]
    run = subprocess.run(command, check=False, timeout=110, capture_output=True, text=True)
    found = re.fullmatch(r"2 learners of 2 processes, ([\d.]+)% of unseen points right\n", run.stdout)
    assert found is not None, run.stderr[-2000:]
    assert float(found[1]) > 95


def test_new_strategy_is_simulated() -> None:
    module = runpy.run_path(str(EXAMPLES / "new_strategy.py"))
    rows = module["simulate"](learners=4)
    assert [name for name, _, _ in rows] == ["KAVG", "Elastic"]
    start = 2.31  # slightly above ln 10, the loss of guessing among ten classes
    assert all(loss < start - 0.3 and seconds > 0 for _, loss, seconds in rows)


@pytest.mark.slow
@pytest.mark.processes
def test_new_strategy_is_trained(tmp_path: Path) -> None:
    arguments = ["train", str(EXAMPLES / "new_strategy.py"), "--set", "budget.minibatches=40", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "murmur", *arguments, "--learners", "2", "--threads", "1"]
    subprocess.run(command, check=True, timeout=110, capture_output=True)
    assert (tmp_path / "score.json").is_file()
