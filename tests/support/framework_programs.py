"""Programs of training frameworks, started in the environment of the integrations."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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


def variables() -> dict[str, str]:
    """Return the environment variables of a program that runs there."""
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONHOME")}
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**kept, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def started(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run Python with these words; return what it has printed, after the check of its exit status."""
    run = subprocess.run(
        [str(PYTHON), *words], check=False, timeout=LONGEST_SECONDS, capture_output=True, text=True, env=variables()
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


class Learners:
    """A process that has imported a program with its framework, and runs it as forked learners."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self._requests = process, 0

    def run(self, out: Path, learners: int = 2, seconds: float = 90, **settings: Any) -> list[int]:
        """Run `main` of the program on all learners, with `out` among its settings; return their exit codes."""
        out.mkdir(parents=True, exist_ok=True)
        self._requests += 1
        limits = {"number": self._requests, "learners": learners, "seconds": seconds, "folder": str(out)}
        request = {**limits, "settings": {"out": str(out), **settings}}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        while (answer := json.loads(self._process.stdout.readline()))["number"] != self._requests:
            pass  # of a test that has not waited for it
        codes: list[int] = answer["codes"]
        return codes


@contextmanager
def forked(program: str) -> Iterator[Learners]:
    """Start the process that runs a module's `main` as learners."""
    command = [str(PYTHON), "-m", "tests.integrations.forked_learners", program]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=variables(), **pipes) as process:
        yield Learners(process)
        process.stdin.close()


def found(out: Path, learners: int = 2) -> list[dict[str, Any]]:
    """Return what each learner has written into `out`."""
    return [json.loads((out / f"found-{rank}-of-{learners}.json").read_text()) for rank in range(learners)]


def said(out: Path, rank: int) -> str:
    return (out / f"learner-{rank}.txt").read_text()
