"""Learners of a joined loop in lock-step that are lost, and come back: processes of `murmur launch`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import torch
import murmur
from murmur.strategies import *
from murmur.strategies.adaptive_kavg import Stages
from murmur.strategies.parameter_averaging import Jobs

strategy, fate, out, total = eval(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), 40
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
plan = murmur.Plan(total_steps=3 * total, samples_per_step=4.0, evaluate=lambda model: {"loss": 1.0})
lost, back, figures = out / "lost", out / "back", {}
with murmur.join(strategy, model, optimizer, plan) as me:
    n = figures["begun"] = me.steps
    figures["moments"] = [float(state["step"]) for state in optimizer.state.values()]
    if me.rank == 1 and lost.exists():
        back.touch()
        total = n + 6
    while n < total or (fate == "returns" and not back.exists()):
        if me.rank == 1 and n == 14 and not lost.exists():
            lost.touch()
            if fate == "fails":
                raise ValueError("an error of the loop's own")
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(4, 2, generator=torch.Generator().manual_seed(3 * n + me.rank))
        model(x).square().mean().backward()
        me.step(4.0)
        n += 1
        if n == 30 and fate != "returns":
            with me.consensus():
                pass
figures |= {"steps": me.steps, "minibatches": me.progress.minibatches}
figures["end"] = [float(x) for t in model.state_dict().values() for x in t.flatten()]
(out / f"ended {me.rank}").write_text(json.dumps(figures))
"""
STRATEGIES = [
    "BMUF(4)",
    *(
        pytest.param(strategy, marks=pytest.mark.slow)
        for strategy in (
            *("KAVG(4)", "KAVG(4, moments='averaged')", "BMUF(4, moments='at_outer')", "SlowMo(4)", "DiLoCo(4)"),
            *("AdaptiveKAVG(Stages((3,)))", "ParameterAveraging(frames_per_iteration=16.0, jobs=Jobs(3))"),
        )
    ),
]


def launched(folder: Path, strategy: str, fate: str, *words: str) -> tuple[int, str, dict[str, Any]]:
    """Return the exit status, the messages, and the figures of the learners that ended."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "murmur", "launch", "--learners", "3", "--threads", "1", *words]
    words = (str(program), strategy, fate, str(folder))
    done = subprocess.run([*command, *words], check=False, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stderr, {p.name[-1]: json.loads(p.read_text()) for p in folder.glob("ended *")}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_others_go_on_in_lock_step(strategy: str, tmp_path: Path) -> None:
    fate = "fails" if strategy == "KAVG(4)" else "dies"
    code, said, ended = launched(tmp_path, strategy, fate, "--on-failure", "alone")
    assert (code, set(ended)) == (0, {"0", "2"}), said
    assert ended["0"]["end"] == ended["2"]["end"]
    assert all(figures["steps"] >= 40 for figures in ended.values())
    assert 80 <= ended["0"]["minibatches"] < 110  # those of three learners, then of two


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_loop_that_is_started_again_goes_on_where_the_others_are(strategy: str, tmp_path: Path) -> None:
    code, said, ended = launched(tmp_path, strategy, "returns", "--on-failure", "alone", "--restarts", "1")
    assert (code, set(ended)) == (0, {"0", "1", "2"}), said
    assert ended["0"]["end"] == ended["1"]["end"] == ended["2"]["end"]
    late = ended["1"]
    assert late["begun"] >= 16
    assert late["steps"] >= late["begun"] + 6
    if strategy == "BMUF(4)":  # its learners keep the state of their optimizers
        assert late["moments"] == [float(late["begun"])] * 6
