"""The environment of the frameworks, which `make integrations` sets up, and programs that run there."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-integrations" / "bin" / "python"
ABSENT = "the frameworks are not installed: make integrations"
needs_frameworks = pytest.mark.skipif(not PYTHON.exists(), reason=ABSENT)


def variables() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


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
