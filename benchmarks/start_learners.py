"""Start of 32 learners, their private memory, and the times of claims of many learners.

    python benchmarks/start_learners.py [--before CHECKOUT] [--learners 32] [--repeats 3]

Time to the first minibatch: from the start of `murmur train` until every learner has computed on one. `--before` names
a checkout with which it is compared, interleaved. Private memory is the unique set size (USS) of each learner at that
time. Claims: 8 and 256 clients of a store process give signs of life and claim twice a second each (`store_load.py`);
the bar is on the ratio of the 99th percentiles of their durations, as the median over repeats.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from measure import bar, close, interleave, median_ratio
from store_load import claim_seconds, percentile_99, python_of

KIND = "long"
ROOT = Path(__file__).parents[1]
FEW, MANY, LOAD_SECONDS = 8, 256, 10.0
MOST_RATIO, MOST_START, MOST_MB = 5.0, 1 / 3, 120.0
LIMIT_SECONDS, POLL_SECONDS = 600.0, 0.02
EXPERIMENT = """
import os, pathlib, time
from dataclasses import dataclass
from murmur import Budget, Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.strategies import ADPSGD
from murmur.recipes.toy import ToyTask

@dataclass(frozen=True)
class Told(ToyTask):
    def minibatch(self, n):
        (pathlib.Path(os.environ["TOLD"]) / str(os.getpid())).touch()
        time.sleep(0.5)
        return super().minibatch(n)

def experiment():
    return Experiment(Told(hidden=16, per_epoch=100_000), ADPSGD(), Budget(epochs=1), SGD(0.1))
"""


def start(checkout: Path, learners: int, memory: list[float]) -> float:
    """Start a run; return the seconds until all learners have a first minibatch, and append their largest USS in MB."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told = folder / "told"
        told.mkdir()
        (folder / "told.py").write_text(EXPERIMENT, encoding="utf-8")
        words = [python_of(checkout), "-m", "murmur", "train", str(folder / "told.py"), "--learners", str(learners)]
        words += ["--threads", "1", "--lease-seconds", "120", "--out", str(folder / "out")]
        variables = {**os.environ, "TOLD": str(told)}
        began = time.monotonic()
        with (folder / "log").open("wb") as log:
            launched = subprocess.Popen(words, env=variables, stdout=log, stderr=log, cwd=folder)
        try:
            while len(os.listdir(told)) < learners:
                if launched.poll() is not None or time.monotonic() - began > LIMIT_SECONDS:
                    raise SystemExit((folder / "log").read_text(encoding="utf-8"))
                time.sleep(POLL_SECONDS)
            seconds = time.monotonic() - began
            memory.append(max(private_mb(int(pid)) for pid in os.listdir(told)))
        finally:
            launched.send_signal(signal.SIGKILL)  # its learners end with it
            launched.wait()
        time.sleep(1.0)
    return seconds


def private_mb(pid: int) -> float:
    """Return the unique set size of a process, in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="checkout of a commit to compare with, set up by make")
    parser.add_argument("--learners", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    memory: dict[str, list[float]] = {"now": [], "before": []}
    sides = {"now": ROOT} if asked.before is None else {"now": ROOT, "before": asked.before.resolve()}
    starts = {name: lambda n=name, at=at: start(at, asked.learners, memory[n]) for name, at in sides.items()}
    seconds = interleave(starts, asked.repeats)
    loads = {str(n): lambda n=n: percentile_99(claim_seconds(ROOT, n, LOAD_SECONDS)) for n in (FEW, MANY)}
    claims = interleave(loads, asked.repeats)
    bars = [bar(f"p99 of claims, {MANY} clients over {FEW}", median_ratio(claims, str(MANY), str(FEW)), MOST_RATIO)]
    bars.append(bar("private memory of a learner, MB", max(memory["now"]), MOST_MB))
    if asked.before is not None:
        bars.append(bar("time to the first minibatch, over before", median_ratio(seconds, "now", "before"), MOST_START))
    figures = {
        "seconds to the first minibatch": {name: statistics.median(values) for name, values in seconds.items()},
        "private MB": {name: max(values) for name, values in memory.items() if values},
        "p99 of claims, ms": {name: 1000 * statistics.median(values) for name, values in claims.items()},
    }
    close("start_learners", figures, bars)


if __name__ == "__main__":
    main()
