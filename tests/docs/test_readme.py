"""README.md shows the code of the source, and its commands run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from murmur.cli import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LINES = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines() if line]
COMMANDS = [line for line in LINES if line.startswith(("murmur", "torchrun"))]


def test_included_code_is_the_source() -> None:
    included = re.findall(r"<!-- from (\S+) -->\n```python\n(.*?)```", README, re.DOTALL)
    assert included
    for path, code in included:
        assert code in (ROOT / path).read_text(), f"README shows another version of {path}"


def run(command: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the README in a folder of its own; a process of its own only where it starts others."""
    words = [*shlex.split(command, comments=True), *more]
    if words[0] == "murmur" and ("train" not in words or "--dry-run" in words):
        with chdir(folder):
            done = CliRunner().invoke(app, words[1:])
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)
    module = "murmur" if words[0] == "murmur" else "torch.distributed.run"
    program = [sys.executable, "-m", module, *words[1:]]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, check=False)


def out_of(command: str) -> str:
    words = shlex.split(command)
    return words[words.index("--out") + 1]


@pytest.mark.processes
@pytest.mark.parametrize("command", [c for c in COMMANDS if " toy " in c and not c.startswith("murmur compare")])
def test_toy_commands_run(command: str, tmp_path: Path) -> None:
    done = run(command, tmp_path, "--set", "budget.minibatches=40")
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    assert (tmp_path / out_of(command) / "run.json").is_file()


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in COMMANDS if " ctc " in c and "--dry-run" not in c])
def test_speech_commands_run(command: str, tmp_path: Path) -> None:
    if find_spec("lhotse") is None:
        pytest.skip("the extra speech is not installed")
    small = [f"--set=task.digits.{part}={count}" for part, count in (("train", 24), ("dev", 4), ("test", 4))]
    done = run(command, tmp_path, *small, "--set", "budget.minibatches=4")
    assert done.returncode == 0, done.stderr
    assert "%WER" in done.stdout


@pytest.mark.processes
@pytest.mark.parametrize("command", [c for c in COMMANDS if "--no-prepare" in c])
def test_dry_runs_prepare_nothing(command: str, tmp_path: Path) -> None:
    if find_spec("lhotse") is None:
        pytest.skip("the extra speech is not installed")
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "not prepared" in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("murmur report")])
def test_report_commands_run(command: str, tmp_path: Path) -> None:
    if find_spec("matplotlib") is None:
        pytest.skip("the extra viz is not installed")
    words = shlex.split(command)
    evaluation = {"kind": "evaluation", "samples": 1.0, "seconds": 1.0, "epoch": 1.0, "figures": {"loss": 1.0}}
    for folder in words[2 : words.index("--out")]:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "records.jsonl").write_text(json.dumps(evaluation) + "\n")
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "<h1>" in (tmp_path / out_of(command)).read_text()


@pytest.mark.processes
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("murmur compare")])
def test_comparisons_are_planned(command: str, tmp_path: Path) -> None:
    done = run(command, tmp_path, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "KAVG" in done.stdout


@pytest.mark.processes
@pytest.mark.parametrize("command", [c for c in COMMANDS if " runs/demo/" in c])
def test_commands_on_the_demo_ask_for_its_run(command: str, tmp_path: Path) -> None:
    """The demo is not trained here: the options are understood, and the missing run is named."""
    done = run(command, tmp_path)
    assert done.returncode == 1, done.stderr
    assert "runs/demo/one-learner" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("make ")])
def test_make_targets_exist(line: str) -> None:
    done = subprocess.run(["make", "-n", *line.split()[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert line != "make demo" or "murmur demo" in done.stdout


def test_every_line_is_of_a_kind_that_is_tested() -> None:
    kinds = (
        " toy ",
        " ctc ",
        "murmur report ",
        " runs/demo/",
        "make ",
        "pip install ",
    )  # .ci/run installs by the same pip lines
    for line in LINES:
        assert any(kind in f"{line} " for kind in kinds), f"no test runs {line!r}"
    makefile = (ROOT / "Makefile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for line in (line for line in LINES if line.startswith("pip install ")):
        if published := re.fullmatch(r"pip install 'murmur-asr\[([\w,]+)\]'", line):
            assert set(published[1].split(",")) <= set(extras)
        else:
            assert line.split("pip install ")[1].split('"')[0] in makefile


@pytest.mark.parametrize("command", COMMANDS)
def test_options_exist(command: str) -> None:
    words = shlex.split(command, comments=True)
    words = words[words.index("train") :] if "train" in words else words[1:]
    told = CliRunner().invoke(app, [words[0], "--help"], env={"COLUMNS": "200"})
    assert told.exit_code == 0, told.output
    for option in (w for w in words if w.startswith("--")):
        assert option in told.output
