"""Kills at random moments from a run's fork to its exit, for every kind of strategy, with checks of the run's end.

    python benchmarks/kills.py [--runs 200] [--out runs/kills] [--seed 0] [--spawn] [--keep]

Run number i draws from (seed, i): a strategy, with or without `--restarts 1`, SIGKILL or SIGSTOP, a learner or the
store process, and a moment between the start of the run and a little after its end. A run that does not finish is then
resumed. Requirements: every run ends in time; a run with status 0 has a model, a score and records up to the budget,
and has every minibatch in its model; any other run ends with status 75 and names the lost process; a resumed run
finishes.

Learners are forked from this process, which has imported everything, so that a run takes two seconds. With `--spawn`
they are the processes of `murmur train`, which import for seconds first. Each run adds a line to OUT/kills.jsonl, and
the same command continues after the last one.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import one_hot

from forked import Forked
from measure import bar, close
from murmur.core.whole_files import FinishedLines
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.task import Loss, Score
from murmur.run import training
from murmur.run.folder.contents import REQUEST
from murmur.run.learner import learn
from murmur.run.request import RunRequest
from murmur.strategies import ADPSGD
from murmur.worlds.process.endings import PEER_LOST_STATUS
from murmur.worlds.process.environment import Place, child_variables
from murmur.worlds.process.launcher import Launch, Unit
from murmur.worlds.process.signals import die_with_parent

KIND = "long"
MINIBATCHES, SECONDS, K = 60, 0.02, 4
START_SECONDS, LEASE_SECONDS = 15.0, 5.0
BOUND_SECONDS = 300.0  # a run that takes longer hangs; on a busy host two starts and a lease can take two minutes
AFTER = 1.1  # moments are drawn from the length of an undisturbed run, times this
STORE = -1  # the store process, in place of a learner's rank
STRATEGIES: Mapping[str, int] = {
    "SyncSGD()": 3,
    f"KAVG(K={K})": 3,
    f"BMUF(K={K})": 3,
    "DelayByOne()": 3,
    "ADPSGD()": 3,
    "SuperLearners(ADPSGD(),2)": 4,
    "ASGD()": 3,
}


@dataclass(frozen=True)
class Marked:
    """A linear model of one weight a minibatch, whose minibatches move their own weight alone.

        f(x) = w^T x,    loss_n = -f(e_n)

    A weight that is still zero in the model of the run belongs to a minibatch that is in no mean.

    Attributes:
        per_epoch: number of minibatches.
    """

    per_epoch: int = MINIBATCHES

    @property
    def samples_per_epoch(self) -> float:
        return float(self.per_epoch)

    def prepare(self) -> None:
        """Nothing is needed."""

    def model(self) -> nn.Module:
        model = nn.Linear(self.per_epoch, 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    def minibatch(self, n: int) -> Tensor:
        return one_hot(torch.tensor([n]), self.per_epoch).float()

    def loss(self, model: nn.Module, minibatch: Tensor) -> Loss:
        time.sleep(SECONDS)
        return Loss(-model(minibatch).sum(), 1.0)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return {"loss": -float(next(model.parameters()).detach().sum())}

    def test(self, model: nn.Module) -> Score:
        return Score(self.evaluate(model))


def experiment() -> Experiment:
    """The experiment of `murmur train benchmarks/kills.py`."""
    return Experiment(Marked(), ADPSGD(), Budget(epochs=1), SGD(0.1), evaluate_every_epochs=0.25, scaling=Fixed())


@dataclass
class ForkLaunch(Launch):
    """A launch whose learners are forked; each leaves its process number in `born`."""

    out: Path = field(kw_only=True)
    born: Path = field(kw_only=True)

    def _start(self, unit: Unit, resume: bool) -> None:
        size = len(self.units)
        place = Place(unit.rank, size, unit.rank, self.host, self.port, self.generation, size)
        variables = child_variables(place, 1, self._secret_file.fileno())

        def learner() -> int:
            die = die_with_parent()
            if die is not None:
                die()
            self._begin_learner()
            faulthandler.register(signal.SIGUSR2)  # prints the stacks if it hangs
            os.environ.update(variables)
            return learn(self.out / REQUEST, resume)

        unit.code = None
        forked = Forked(learner)
        unit.process = forked  # type: ignore[assignment]
        note_process(self.born, unit.rank, forked.pid)


def note_process(born: Path, rank: int, pid: int) -> None:
    """Record the process number of a learner."""
    born.mkdir(parents=True, exist_ok=True)
    unfinished = born / f".{rank}"
    unfinished.write_text(str(pid))
    unfinished.replace(born / str(rank))


@dataclass(frozen=True)
class Plan:
    """One run and its fault.

    Attributes:
        number: number of the run.
        strategy: strategy that trains.
        restarts: number of restarts of each learner.
        how: "KILL", "STOP" or "none".
        victim: rank of a learner, or `STORE`.
        share: time of the fault, as a share of an undisturbed run's length.
    """

    number: int
    strategy: str
    restarts: int
    how: str
    victim: int
    share: float

    @classmethod
    def drawn(cls, seed: int, number: int) -> Plan:
        """The plan of run `number`: strategies take turns, all else is drawn."""
        draw = random.Random(f"{seed} {number}")
        strategy = list(STRATEGIES)[number % len(STRATEGIES)]
        how = draw.choice(("KILL", "KILL", "STOP"))
        store = how == "KILL" and draw.random() < 0.1
        victim = STORE if store else draw.randrange(STRATEGIES[strategy])
        return cls(number, strategy, draw.randrange(2), how, victim, AFTER * draw.random())


@dataclass(frozen=True)
class Ended:
    """The end of a launch: its status (None: it hung and was killed), seconds, and output."""

    status: int | None
    seconds: float
    said: str


def request_of(plan: Plan, folder: Path, resume: bool) -> RunRequest:
    """The request of the equivalent `murmur train` command."""
    return RunRequest(
        source=str(Path(__file__).resolve()),
        strategy=plan.strategy,
        learners=STRATEGIES[plan.strategy],
        out=folder / "out",
        resume=resume,
        restarts=plan.restarts,
        threads=1,
        lease_seconds=LEASE_SECONDS,
        start_seconds=START_SECONDS,
    )


def train_words(request: RunRequest) -> list[str]:
    """The equivalent `murmur train` command."""
    words = [sys.executable, "-m", "murmur", "train", request.source, "--out", str(request.out), "--threads", "1"]
    for option in ("strategy", "learners", "restarts", "lease_seconds", "start_seconds"):
        words += [f"--{option.replace('_', '-')}", str(getattr(request, option))]
    for setting in request.settings:
        words += ["--set", setting]
    return [*words, "--resume"] if request.resume else words


def start(plan: Plan, folder: Path, resume: bool, spawn: bool) -> Forked | subprocess.Popen[bytes]:
    """Start a launch, whose output goes to a file."""
    request = request_of(plan, folder, resume)
    said = folder / ("said-resumed" if resume else "said")
    if spawn:
        with said.open("wb") as log:
            return subprocess.Popen(train_words(request), stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def launch() -> int:
        with said.open("wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        forking = partial(ForkLaunch, out=request.out, born=folder / "born")
        setattr(training, "Launch", forking)  # noqa: B010 - this process is one launch, and nothing else
        return training.train(request, request.experiment())

    return Forked(launch)


def process_of(launcher: int, victim: int, folder: Path, spawn: bool) -> int | None:
    """The process to hit, if it has been started."""
    try:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        if victim == STORE:
            stores = (
                c for c in children if b"murmur.worlds.process.store_server" in Path(f"/proc/{c}/cmdline").read_bytes()
            )
            return next(map(int, stores), None)
        if not spawn:
            return int((folder / "born" / str(victim)).read_text())
        ranks = (c for c in children if f"\0RANK={victim}\0".encode() in Path(f"/proc/{c}/environ").read_bytes())
        return next(map(int, ranks), None)
    except OSError:
        return None


def hit(plan: Plan, launcher: int, folder: Path, spawn: bool) -> bool:
    """Hit the victim; True if there was a process to hit."""
    pid = process_of(launcher, plan.victim, folder, spawn)
    if pid is None:
        return False
    try:
        os.kill(pid, signal.SIGKILL if plan.how == "KILL" else signal.SIGSTOP)
    except ProcessLookupError:
        return False
    return True


def go(plan: Plan, folder: Path, after: float | None, resume: bool, spawn: bool) -> tuple[Ended, float | None]:
    """Run a launch to its end, hit after this many seconds; with the time of the hit, None if it missed."""
    began = time.monotonic()
    launcher = start(plan, folder, resume, spawn)
    hit_at: float | None = None
    while launcher.poll() is None and time.monotonic() - began < BOUND_SECONDS:
        if after is not None and time.monotonic() - began >= after:
            at, after = time.time(), None
            hit_at = at if hit(plan, launcher.pid, folder, spawn) else None
        time.sleep(0.005)
    status = launcher.poll()
    if status is None:
        show_stacks(folder)
        launcher.kill()  # its children die with it
        launcher.wait()
    said = (folder / ("said-resumed" if resume else "said")).read_text(errors="replace")
    return Ended(status, time.monotonic() - began, said), hit_at


def show_stacks(folder: Path) -> None:
    """Make the learners of a hanging launch print their stacks."""
    for file in (folder / "born").glob("[0-9]*"):
        with suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGUSR2)
    time.sleep(1.0)


def undone(folder: Path) -> int:
    """Minibatches of the budget that are in no mean: their weights are zero in the model."""
    model = folder / "out" / "model.safetensors"
    return MINIBATCHES - sum(int(weights.count_nonzero()) for weights in load_file(model).values())


def lacks(folder: Path) -> list[str]:
    """Missing parts of a run that ended with status 0."""
    out = folder / "out"
    missing = [name for name in training.WHOLE if not (out / name).is_file()]
    records = [json.loads(line) for line in FinishedLines(out / "records.jsonl")] if not missing else []
    ends = [record["minibatches"] for record in records if record["kind"] == "evaluation"]
    if not missing and (not ends or ends[-1] != MINIBATCHES):
        missing.append("records up to the budget")
    if not missing and json.loads((out / "model.json").read_text())["minibatches"] != MINIBATCHES:
        missing.append("a model of the whole budget")
    return missing


def judge(plan: Plan, ended: Ended, folder: Path) -> list[str]:
    """Faults in the end of a launch."""
    if ended.status is None:
        return [f"hung for {ended.seconds:.0f} s"]
    if ended.status == 0:
        wrong = [f"status 0 without {what}" for what in lacks(folder)]
        missed = 0 if wrong else undone(folder)
        return [*wrong, f"status 0 with {missed} minibatches in no mean"] if missed else wrong
    wrong = [] if ended.status == PEER_LOST_STATUS else [f"status {ended.status}"]
    named = "store" if plan.victim == STORE else f"learner {plan.victim}\\b"
    return wrong if re.search(named, ended.said) else [*wrong, f"nothing said of {named}"]


def perform(plan: Plan, folder: Path, length: float, spawn: bool) -> dict[str, Any]:
    """Run a plan, resume the run if it did not finish, and return its line."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ended, hit_at = go(plan, folder, plan.share * length, False, spawn)
    wrong = judge(plan, ended, folder)
    resumed: Ended | None = None
    if ended.status != 0:
        resumed, _ = go(plan, folder, None, True, spawn)
        wrong += [f"resumed: {each}" for each in judge(plan, resumed, folder)]
        wrong += [f"resumed: status {resumed.status}"] if resumed.status != 0 else []
    if not wrong:
        shutil.rmtree(folder)
    return {
        **vars(plan),
        "hit": hit_at is not None,
        "status": ended.status,
        "seconds": ended.seconds,
        "resumed": None if resumed is None else resumed.status,
        "wrong": wrong,
    }


def length_of(strategy: str, out: Path, spawn: bool) -> float:
    """Seconds of an undisturbed run, made once."""
    kept = out / f"seconds{'-spawned' if spawn else ''}.json"
    known: dict[str, float] = json.loads(kept.read_text()) if kept.exists() else {}
    if strategy not in known:
        plan, folder = Plan(-1, strategy, 0, "none", 0, 0.0), out / "undisturbed"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        ended, _ = go(plan, folder, None, False, spawn)
        wrong = judge(plan, ended, folder)
        if wrong or ended.status != 0:
            raise SystemExit(f"{strategy} undisturbed: status {ended.status}, {wrong}\n{ended.said[-3000:]}")
        known[strategy] = ended.seconds
        kept.write_text(json.dumps(known))
        print(f"{strategy} undisturbed: {ended.seconds:.1f} s", flush=True)
    return known[strategy]


def campaign(runs: int, out: Path, seed: int, spawn: bool) -> list[dict[str, Any]]:
    """Perform all runs that are not done yet; return the lines of all."""
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "kills.jsonl"
    rows = [json.loads(line) for line in FinishedLines(kept)] if kept.exists() else []
    done = {row["number"] for row in rows}
    for number in (n for n in range(runs) if n not in done):
        plan = Plan.drawn(seed, number)
        row = perform(plan, out / f"run-{number}", length_of(plan.strategy, out, spawn), spawn)
        with kept.open("a") as file:
            file.write(json.dumps(row) + "\n")
        rows.append(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return [row for row in rows if row["number"] < runs]


def summary(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figures and bars."""
    wrong = [each for row in rows for each in row["wrong"]]

    def count(*words: str) -> int:
        return sum(any(word in each for word in words) for each in wrong)

    figures = {
        "runs": len(rows),
        "hit": sum(row["hit"] for row in rows),
        "statuses": dict(Counter(str(row["status"]) for row in rows)),
        "longest_seconds": max((row["seconds"] for row in rows), default=0.0),
        "strategies": dict(Counter(row["strategy"] for row in rows)),
        "wrong": [f"run {row['number']}: {each}" for row in rows for each in row["wrong"]],
    }
    return figures, [
        bar("runs that hung", count("hung"), 0),
        bar("status 0 without a whole run", count("status 0 without"), 0),
        bar("status 0 with minibatches in no mean", count("in no mean"), 0),
        bar(
            "ends that do not name what was lost, or with another status than 75",
            len(wrong) - count("hung", "status 0"),
            0,
        ),
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=200)
    options.add_argument("--out", type=Path, default=Path("runs/kills"), help="folder of the lines and of failed runs")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--spawn", action="store_true", help="learners are processes of murmur train")
    options.add_argument("--keep", action="store_true", help="keep the record for RESULTS.md")
    given = options.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="murmur: %(message)s", stream=sys.stderr)
    figures, bars = summary(campaign(given.runs, given.out.resolve(), given.seed, given.spawn))
    if given.keep:
        close("kills", figures, bars)
    else:
        for b in bars:
            print(f"{'holds ' if b['holds'] else 'MISSED'}  {b['what']}: {b['value']:.4g} (bar {b['bar']:g})")
        print(json.dumps({"benchmark": "kills", "figures": figures, "bars": bars}))
    sys.exit(0 if all(b["holds"] for b in bars) else 1)


if __name__ == "__main__":
    main()
