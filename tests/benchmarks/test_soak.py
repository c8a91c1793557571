"""A few seconds of trouble, and what would tell that something grows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(240)
def test_learners_that_are_stopped_and_killed_bring_the_run_to_its_end() -> None:
    """Every minibatch is done, nobody hangs; `make soak` is the same for an hour, with links that are cut."""
    words = [sys.executable, "soak.py", "--minutes", "0.12", "--every", "2", "--here", "--seed", "3"]
    done = subprocess.run(words, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert all(bar["holds"] for bar in told["bars"])
    assert sum(told["figures"]["faults"].values()) >= 2


def test_growth_is_told_from_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slope of 1 in 100 samples of noise 5, with outliers, is found within a tenth; without one there is none."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from random import Random

    from soak import growth

    draw = Random(0)
    times = [0.5 * k for k in range(400)]
    noise = [draw.gauss(0, 5) + (300 if draw.random() < 0.05 else 0) for _ in times]
    assert abs(growth(times, noise)) < 3
    assert growth(times, [n + t for n, t in zip(noise, times, strict=True)]) == pytest.approx(times[-1], rel=0.1)
