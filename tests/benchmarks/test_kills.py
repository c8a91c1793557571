"""The campaign of kills: the oracle that reads from a model which minibatches are in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kills import MINIBATCHES, SECONDS, Marked, undone

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "kills.py"


@pytest.mark.parametrize("missing", [(), (0,), (3, MINIBATCHES - 1)])
def test_a_minibatch_that_no_learner_has_used_is_found(
    missing: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kills.SECONDS", SECONDS / 1000)
    task = Marked()
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for n in (n for n in range(MINIBATCHES) if n not in missing):
        optimizer.zero_grad()
        task.loss(model, task.minibatch(n)).total.backward()
        optimizer.step()
    (tmp_path / "out").mkdir()
    save_file({"weights": model.weight.detach(), "buffers": torch.empty(0)}, tmp_path / "out" / "model.safetensors")
    assert undone(tmp_path) == len(missing)


@pytest.mark.processes
def test_a_run_of_the_campaign_trains(tmp_path: Path) -> None:
    words = [sys.executable, str(PROGRAM), "--runs", "1", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [json.loads(line) for line in (tmp_path / "kills.jsonl").read_text().splitlines()]
    assert row["wrong"] == []
