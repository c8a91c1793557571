"""Campaign over whole runs: random strategies, nested too, on simulated clusters with random faults.

    python benchmarks/fuzz_runs.py [--first 0] [--count 100000] [--jobs 2]

Every run trains through the trainer on the virtual clock. The oracle counts minibatches at the task. A run fails if

    - `fit` returns and a minibatch of the budget was never computed;
    - it needs more than 60 processor seconds, or its learners wait without end;
    - learners wait for each other;
    - it raises anything but the documented error of a learner that it cannot go on without.

Results of blocks of seeds are kept in a file of rows, so that a campaign goes on where it ended. `--case` runs one case
again; a failure is printed as the smallest case that still fails.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch
from benchmarks.fuzz_cases import Case, drawn, may_lose, shrunk, strategy_of
from torch import Tensor, nn

from measure import bar, close
from murmur.core.facts import Facts, FactsOfInner
from murmur.core.group import PeerLost
from murmur.core.learner import Learner, Strategy
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.task import Loss
from murmur.engine.trainer import Trainer
from murmur.worlds.virtual import cluster as faults
from murmur.worlds.virtual.clock import Deadlock, Livelock
from murmur.worlds.virtual.world import VirtualWorld

PROCESSOR_SECONDS = 60.0
BLOCK = 500
ENDED, LOST = "ended", "ended by a loss"
UNDONE, ENDLESS, STUCK, RAISED = "minibatches undone", "runs that never end", "deadlocks", "exceptions"
ROWS = Path(__file__).parents[1] / "results" / "bench" / "fuzz_runs_rows.jsonl"


class Endless(Exception):
    """A run has used its processor seconds."""


KINDS: Mapping[type[Exception], str] = {Endless: ENDLESS, Livelock: ENDLESS, Deadlock: STUCK}


@dataclass(frozen=True)
class Counted:
    """A small quadratic problem that counts its minibatches.

    Attributes:
        taken: Number of gradients of each minibatch.
    """

    per_epoch: int = 16
    samples_per_epoch: float = 16.0
    taken: Counter[int] = field(default_factory=Counter, repr=False)

    def prepare(self) -> None:
        """Do nothing: minibatches are numbers."""

    def model(self) -> nn.Module:
        return nn.Linear(3, 4, bias=False)

    def minibatch(self, n: int) -> Tensor:
        self.taken[n] += 1
        return torch.tensor([1.0, n % 3 - 1.0, n % 5 - 2.0])

    def loss(self, model: nn.Module, minibatch: Tensor) -> Loss:
        return Loss(0.5 * model(minibatch).square().sum(), 1.0)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return {"loss": 0.0}


@dataclass(frozen=True)
class Begun(FactsOfInner):
    """A strategy that notes the learners that begin it: without one of them, the start of a run ends with its loss."""

    strategy: Strategy
    learners: set[int] = field(default_factory=set, repr=False)

    async def __call__(self, me: Learner) -> None:
        self.learners.add(me.group.rank)
        await self.strategy(me)

    @property
    def inner(self) -> Strategy:
        return self.strategy

    @property
    def tolerates_loss(self) -> bool:
        return Facts.of(self.strategy).tolerates_loss


@dataclass(frozen=True)
class Found:
    """Result of a case: its kind, and what is to be said of it."""

    kind: str
    said: str = ""
    undone: int = 0


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `Endless` in the block once it has used so many processor seconds."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise Endless

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def run(case: Case, seconds: float = PROCESSOR_SECONDS) -> Found:
    """Run a case.

    Raises:
        ValueError: Its strategy is refused.
    """
    task, strategy = Counted(), Begun(strategy_of(case.strategy))
    experiment = Experiment(task, strategy, Budget(minibatches=case.minibatches), SGD(0.01), scaling=Fixed())
    world = VirtualWorld(case.cluster())
    try:
        with at_most(seconds):
            Trainer(experiment, world).fit()
    except PeerLost as error:
        if may_lose(case, begun=len(strategy.learners) == case.learners):
            return Found(LOST)
        return Found(STUCK if "stuck" in str(error) else RAISED, f"PeerLost: {error}")
    except Exception as error:  # every other error is a finding
        return Found(KINDS.get(type(error), RAISED), f"{type(error).__name__}: {error}")
    missing = [n for n in range(case.minibatches) if n not in task.taken]
    return Found(UNDONE, f"minibatches {missing}", len(missing)) if missing else Found(ENDED)


def block(first: int, count: int) -> dict[str, object]:
    """Run the cases of a block of seeds; return their counts, and the failures."""
    torch.set_num_threads(1)
    logging.disable()
    began, counts, failures, undone = time.process_time(), Counter[str](), [], 0
    for seed in range(first, first + count):
        found = run(drawn(seed))
        counts[found.kind] += 1
        undone += found.undone
        if found.kind not in (ENDED, LOST):
            failures.append({"seed": seed, "kind": found.kind, "said": found.said[:400]})
    seconds = time.process_time() - began
    row = {"first": first, "count": count, "seconds": round(seconds, 1), "undone": undone, "failures": failures}
    return {**row, "counts": dict(counts)}


def smallest(case: Case, kind: str) -> Case:
    """Return the smallest case that fails in this way."""
    return shrunk(case, lambda smaller: run(smaller, 10.0).kind == kind)


def campaign(first: int, count: int, jobs: int, rows: Path) -> list[dict[str, object]]:
    """Run all blocks of which no row is there yet; return the rows of all."""
    version = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    done = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    there = {(row["first"], row["count"]) for row in done}
    wanted = [(start, min(BLOCK, first + count - start)) for start in range(first, first + count, BLOCK)]
    with ProcessPoolExecutor(jobs) as pool, rows.open("a") as out:
        for row in pool.map(block, *zip(*[w for w in wanted if w not in there], strict=True) or ((), ())):
            row["commit"] = version.stdout.strip()
            print(json.dumps(row["counts"]), f"seeds from {row['first']}", row["failures"] or "", flush=True)
            out.write(json.dumps(row) + "\n")
            out.flush()
            done.append(row)
    return [row for row in done if (row["first"], row["count"]) in wanted]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=100_000, help="number of seeds")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--rows", type=Path, default=ROWS, help="file of the rows")
    parser.add_argument("--case", help="run this case alone, given as its text, or the seed of one")
    asked = parser.parse_args()
    if asked.case is not None:
        case = drawn(int(asked.case)) if asked.case.isdigit() else eval(asked.case, {**vars(faults), "Case": Case})
        found = run(case)
        print(case, found, sep="\n")
        if found.kind not in (ENDED, LOST):
            print("smallest:", smallest(case, found.kind), sep="\n")
        sys.exit(found.kind not in (ENDED, LOST))
    rows = campaign(asked.first, asked.count, asked.jobs, asked.rows)
    counts = sum((Counter(row["counts"]) for row in rows), Counter())
    figures = {"runs by end": dict(counts), "processor hours": round(sum(row["seconds"] for row in rows) / 3600, 2)}
    bars = [bar("seeds", sum(row["count"] for row in rows), 100_000, at_most=False)]
    bars.append(bar(UNDONE, sum(row["undone"] for row in rows), 0))
    bars += [bar(kind, counts[kind], 0) for kind in (ENDLESS, STUCK, RAISED)]
    close("fuzz_runs", figures, bars)


if __name__ == "__main__":
    main()
