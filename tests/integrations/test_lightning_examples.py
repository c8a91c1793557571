"""The examples for Lightning, started as their docstrings say."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.framework_programs import PYTHON, ROOT, needs, variables

pytestmark = [
    needs("lightning"),
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.interpreter,
    pytest.mark.timeout(600),
]
LAUNCHES = {
    "plainly": [],
    "murmur launch": ["-m", "murmur", "launch", "--learners", "2", "--threads", "1"],
    "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", "2"],
}
FOUND = r"learner \d of 2: largest error of a weight ([\d.]+)"


def errors(words: list[str], folder: Path) -> list[str]:
    """Run a program and return the errors that its learners tell."""
    command = [str(PYTHON), *words]
    run = subprocess.run(command, check=False, timeout=500, capture_output=True, text=True, cwd=folder, env=variables())
    assert run.returncode == 0, run.stderr[-2000:]
    return re.findall(FOUND, run.stdout)


@pytest.mark.parametrize("launch", LAUNCHES)
def test_one_line(launch: str, tmp_path: Path) -> None:
    found = errors([*LAUNCHES[launch], str(ROOT / "examples" / "lightning_strategy.py"), "saved"], tmp_path)
    assert len(found) == 2
    assert found[0] == found[1]
    assert float(found[0]) < 0.05
    assert (tmp_path / "saved" / "last.ckpt").exists()


def test_the_line_in_a_configuration(tmp_path: Path) -> None:
    program = str(ROOT / "examples" / "lightning_hydra.py")
    found = errors([program, "trainer.strategy.strategy.K=4"], tmp_path)
    assert len(found) == 2
    assert found[0] == found[1]
    assert float(found[0]) < 0.05


def test_a_user_adds_one_line() -> None:
    lines = (ROOT / "examples" / "lightning_strategy.py").read_text().splitlines()
    assert sum("# <-" in line for line in lines[1:]) == 1
