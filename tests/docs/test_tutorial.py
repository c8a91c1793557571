"""The tutorial's commands: their options exist, and in sequence they lead from a folder to recognised words."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
SUBCOMMANDS = {"lm": 1}  # number of subcommand words after a command's name
ONE = ["--threads", "1"]
QUICK = ["--set", "budget.epochs=0.1", "--set", "task.network.hidden=16", *ONE]
SMALL = ["--set", "task.network.hidden=8", "--set", "task.network.layers=1", *ONE]
USEFUL_PERCENT = 30.0


@pytest.mark.parametrize("line", COMMANDS)
def test_options_exist(line: str) -> None:
    program, name, *words = shlex.split(line)
    assert program == "murmur"
    pytest.importorskip("lhotse", reason="the speech libraries are not installed (pip install murmur-asr[speech])")
    command = [name, *words[: SUBCOMMANDS.get(name, 0)]]
    told = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    assert told.exit_code == 0, told.output
    assert not [word for word in words if word.startswith("--") and word not in told.output]


def more_of(words: list[str]) -> list[str]:
    """Settings that shorten a command; the run behind the page's figure stays unchanged."""
    if words[:2] == ["train", "own"]:
        return ONE if "runs/words" in words or "--dry-run" in words else QUICK
    if words[:2] == ["train", "ctc"]:
        return SMALL
    return ["--set", "budget.epochs=1"] if "simulate" in words else []


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(3600)
def test_in_their_order_they_lead_to_words(tmp_path: Path) -> None:
    """Five minutes of commands by twelve synthetic voices replace the recordings."""
    for library, extra in (("lhotse", "speech"), ("matplotlib", "viz"), ("espeakng_loader", "synth")):
        if find_spec(library) is None:
            pytest.skip(f"the extra {extra} is not installed")
    from tests.support.spoken_commands import record

    record(tmp_path / "recordings", 15)
    for command in COMMANDS:
        words = shlex.split(command.replace("budget.epochs=20", "budget.epochs=1"))[1:]
        run = [sys.executable, "-m", "murmur", *words, *more_of(words)]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=1500)
        # doctor's status depends on this machine, which may be busy
        assert done.returncode in ((0, 1) if words == ["doctor"] else (0,)), f"{command}\n{done.stdout}\n{done.stderr}"
    score = json.loads((tmp_path / "runs/words/score.json").read_text())["test"]
    assert score["network test wer"] < USEFUL_PERCENT
    for left in ("runs/errors.txt", "runs/words.html", "runs/all.html", "corpora/mine/manifest.json"):
        assert (tmp_path / left).stat().st_size > 0
