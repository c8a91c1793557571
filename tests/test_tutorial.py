"""The tutorial's commands: their options exist, and in their order they lead from a folder to a word error rate."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
SMALL = ["--set", "task.hidden=8", "--set", "task.layers=1", "--threads", "1"]


@pytest.mark.parametrize("command", COMMANDS)
def test_options_exist(command: str) -> None:
    program, name, *words = shlex.split(command)
    assert program == "murmur"
    pytest.importorskip("lhotse", reason="the speech libraries are not installed (pip install murmur[speech])")
    told = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
    assert told.exit_code == 0, told.output
    assert not [word for word in words if word.startswith("--") and word not in told.output]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(1200)
def test_in_their_order_they_lead_to_an_error_rate(tmp_path: Path) -> None:
    if find_spec("lhotse") is None or find_spec("matplotlib") is None:
        pytest.skip("the extras speech and viz are not installed")
    from layouts import noise

    for n in range(10):
        for take in range(2):
            noise(tmp_path / f"recordings/speaker{n}/{take}.wav", 1.2)
            (tmp_path / f"recordings/speaker{n}/{take}.txt").write_text("Go on." if take else "No!")
    said = ""
    for command in COMMANDS:
        words = shlex.split(command.replace("budget.epochs=20", "budget.epochs=1"))[1:]
        # Networks of eight cells: the way is tested, not what it leads to.
        more = SMALL if words[:2] == ["train", "ctc"] else ["--set", "budget.epochs=1"] if "simulate" in words else []
        run = [sys.executable, "-m", "murmur", *words, *more]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
        # doctor's status is its verdict on this machine, which may be a busy one
        assert done.returncode in ((0, 1) if words == ["doctor"] else (0,)), f"{command}\n{done.stdout}\n{done.stderr}"
        said += done.stdout
    assert said.count("%WER") >= 3  # of two runs and of score
    for left in ("runs/errors.txt", "runs/first.html", "runs/both.html", "corpora/mine/manifest.json"):
        assert (tmp_path / left).stat().st_size > 0
