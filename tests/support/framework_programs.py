"""Programs of training frameworks, started in the environment of the integrations."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-integrations" / "bin" / "python"
LONGEST_SECONDS = 110.0
LAUNCHERS = {
    "murmur": ["-m", "murmur", "launch", "--threads", "1", "--learners"],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"],
}


def has(package: str) -> bool:
    """True if the environment of the integrations is there, and the package in it."""
    return any((PYTHON.parents[1] / "lib").glob(f"python3*/site-packages/{package}/__init__.py"))


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not has(package), reason=f"{package} is not in .venv-integrations: run make integrations")


def started(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run Python with these words; return what it has printed, after the check of its exit status."""
    paths = [str(ROOT / "src"), str(ROOT)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for name in ("VIRTUAL_ENV", "PYTHONHOME"):
        variables.pop(name, None)
    run = subprocess.run(
        [str(PYTHON), *words], check=False, timeout=LONGEST_SECONDS, capture_output=True, text=True, env=variables
    )
    assert run.returncode == code, run.stdout[-1000:] + run.stderr[-3000:]
    return run


def learners(
    program: str,
    runs: Mapping[Path, Mapping[str, Any]],
    count: int = 2,
    launcher: str = "murmur",
    options: Sequence[str] = (),
) -> list[list[dict[str, Any]]]:
    """Run a program of tests/integrations in `count` processes, which import their framework once for all runs.

    Each run has a folder, where each process writes its results; they are returned by run and process.
    """
    for out in runs:
        out.mkdir(parents=True, exist_ok=True)
    given = json.dumps([{"out": str(out), **settings} for out, settings in runs.items()])
    path = str(ROOT / "tests" / "integrations" / program)
    started(*LAUNCHERS[launcher], str(count), *options, path, given)
    return [[json.loads((out / f"{rank}.json").read_text()) for rank in range(count)] for out in runs]


def check_example(name: str, out: Path) -> None:
    """Run an example in two processes; check that their weights are equal and close to the right ones."""
    printed = started(*LAUNCHERS["murmur"], "2", str(ROOT / "examples" / name), str(out)).stdout
    errors = re.findall(r"learner \d of 2: largest error of a weight ([\d.]+)", printed)
    assert len(errors) == 2
    assert errors[0] == errors[1]
    assert float(errors[0]) < 0.05
