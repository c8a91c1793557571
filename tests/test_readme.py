"""What README shows is what the code is, and its commands run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith(("murmur", "torchrun"))
]


def test_included_code_is_the_source() -> None:
    included = re.findall(r"<!-- from (\S+) -->\n```python\n(.*?)```", README, re.DOTALL)
    assert included
    for path, code in included:
        assert code in (ROOT / path).read_text(), f"README shows another version of {path}"


@pytest.mark.processes
@pytest.mark.parametrize("command", [c for c in COMMANDS if " toy " in c])
def test_toy_commands_run(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    start = (
        [sys.executable, "-m", "murmur"] if words[0] == "murmur" else [sys.executable, "-m", "torch.distributed.run"]
    )
    short = [] if "--resume" in words else ["--set", "budget.minibatches=40"]
    done = subprocess.run([*start, *words[1:], *short], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    assert (tmp_path / words[words.index("--out") + 1] / "run.json").is_file()


@pytest.mark.parametrize("command", COMMANDS)
def test_options_exist(command: str) -> None:
    words = shlex.split(command)
    words = words[words.index("train") :] if "train" in words else words[1:]
    told = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "200"})
    assert told.exit_code == 0, told.output
    for option in (w for w in words if w.startswith("--")):
        assert option in told.output
