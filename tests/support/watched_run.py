"""`murmur train` with three learners of a slow toy problem, watched through its records."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from murmur.core.whole_files import FinishedLines

EXPERIMENT = """
import time
from itertools import pairwise
from dataclasses import dataclass
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.tasks.toy import ToyTask
from murmur.strategies import ADPSGD
from pathlib import Path

SLOWLY = Path(__file__).with_name("slowly")

@dataclass(frozen=True)
class Slow(ToyTask):
    def minibatch(self, n):
        time.sleep(0.3 if SLOWLY.exists() else 0.02)
        return super().minibatch(n)

def experiment():
    return Experiment(Slow(hidden=16, per_epoch=400), ADPSGD(), Budget(epochs=1), SGD(0.1), evaluate_every_epochs=0.25)
"""


def learners_of(launcher: int) -> list[int]:
    """Return the process numbers of the learners, in order of rank."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    ranks = {}
    for pid in children:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        rank = [v[5:] for v in variables if v.startswith(b"RANK=")]
        if rank:
            ranks[int(rank[0])] = int(pid)
    return [ranks[r] for r in sorted(ranks)]


BORNE = (
    "--lease-seconds",
    "20",
)  # a learner starved by a busy machine does not count as lost; a dead one is noticed at once


class Run:
    """`murmur train` with three learners, watched through its records."""

    def __init__(self, folder: Path, *options: str) -> None:
        file = folder / "slow.py"
        file.write_text(EXPERIMENT)
        self.out = folder / "out"
        words = [sys.executable, "-m", "murmur", "train", str(file), "--learners", "3", "--threads", "1"]
        self.process = subprocess.Popen([*words, "--out", str(self.out), *options])

    def records(self) -> list[dict[str, object]]:
        file = self.out / "records.jsonl"
        return [json.loads(line) for line in FinishedLines(file)] if file.exists() else []

    def await_learner(self, rank: int) -> None:
        """Let the others work slowly until a learner, which may take long to start, takes a step."""
        slowly, seen = self.out.with_name("slowly"), len(self.records())
        slowly.touch()
        deadline = time.monotonic() + 90
        while not any(r["kind"] == "step" and r["learner"] == rank for r in self.records()[seen + 2 :]):
            assert self.process.poll() is None, "the run has ended too early"
            assert time.monotonic() < deadline, f"learner {rank} does not take part"
            time.sleep(0.05)
        slowly.unlink()

    def until(self, steps: int) -> None:
        deadline = time.monotonic() + 90
        while len(self.records()) < steps:
            assert self.process.poll() is None, "the run has ended too early"
            assert time.monotonic() < deadline, "the run makes no progress"
            time.sleep(0.05)

    def end(self, seconds: float = 180) -> int:
        return self.process.wait(seconds)
