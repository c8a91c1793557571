"""Runs of drawn strategies in processes, with real signals at drawn moments; minibatches are counted at the task.

    python benchmarks/fuzz_processes.py [--seeds 500] [--first 0] [--out runs/fuzz-processes] [--keep]

Seed s draws a strategy (also nested), 2 to 5 learners, 0 to 2 restarts, up to four faults and perhaps a learner that is
added later. Faults are SIGKILL, also once more right after the learner was started again, SIGSTOP with a later SIGCONT,
a start that is held up, and SIGTERM to the launcher. A run that does not end with status 0 is resumed without faults.

Every learner appends each minibatch that it computes to a file of its own. Requirements: with status 0 all minibatches
are in these files, and the model and the score are there; any other status is 75 or 79 (or that of SIGTERM
during the start); every launch ends; the resumed
run ends with 0; no process is left.

Learners are forked from this process, as in `kills.py`, so that a run takes a few seconds. Each seed adds a line to
OUT/fuzz.jsonl, and the same command continues after the last one. The folders of failed seeds stay.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from forked import Forked
from kills import SECONDS, ForkLaunch, show_stacks
from measure import bar, close
from murmur.core.stop_signals import STOPPED_STATUS, Stopped
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.task import Loss, Score, seed_of
from murmur.run import training
from murmur.run.configuration import configure
from murmur.run.learner import one_more, run_learner
from murmur.run.request import RunRequest
from murmur.strategies import ADPSGD
from murmur.worlds.process.endings import PEER_LOST_STATUS

KIND = "long"
MINIBATCHES = 60
REQUEST = partial(RunRequest, source=str(Path(__file__).resolve()), threads=1, lease_seconds=2.0, start_seconds=15.0)
BOUND_SECONDS, LAST_SECONDS = 240.0, 30.0  # of a launch; of an added learner after the end of the launch
INNER = (
    *("KAVG(K=4)", "BMUF(K=4)", "SyncSGD()", "DelayByOne()", "ADPSGD()", "A2CiD2()", "ASGD()", "DiLoCo(4)"),
    *("Downpour(2,3)", "EASGD(2)", "QuasiGlobal()", "SlowMo(4)", "AdaptiveKAVG()"),
    *("NoLoCo(3)", "DecoupledDiLoCo(4, 2, 2)"),
)
AROUND = ("{}", "SuperLearners({},2)", "SuperLearners({},3)", "OwnShares({})", "Compressed({},'bfloat16')")
ADDING = ("KAVG(K=4)", "BMUF(K=4)", "ADPSGD()")


@dataclass(frozen=True)
class Logged:
    """A small classifier whose learners log every minibatch that they compute.

    Attributes:
        folder: folder of the logs, one file per process.
        per_epoch: number of minibatches.
    """

    folder: str = "."
    per_epoch: int = MINIBATCHES

    @property
    def samples_per_epoch(self) -> float:
        return 8.0 * self.per_epoch

    def prepare(self) -> None:
        Path(self.folder).mkdir(parents=True, exist_ok=True)

    def model(self) -> nn.Module:
        return nn.Linear(8, 3)

    def minibatch(self, n: int) -> tuple[Tensor, Tensor, int]:
        draw = torch.Generator().manual_seed(seed_of("kills", n))
        x = torch.randn(8, 8, generator=draw)
        return x, x[:, :3].argmax(1), n

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, Tensor, int]) -> Loss:
        x, y, n = minibatch
        time.sleep(SECONDS)
        with (Path(self.folder) / f"{os.getpid()}.log").open("a") as log:
            log.write(f"{n}\n")
        return Loss(cross_entropy(model(x), y, reduction="sum"), float(len(y)))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        x, y, _ = self.minibatch(-1)
        return {"loss": float(cross_entropy(model(x), y))}

    def test(self, model: nn.Module) -> Score:
        with torch.no_grad():
            return Score(self.evaluate(model))


@dataclass(frozen=True)
class Fault:
    """A fault of a learner.

    `how` is "KILL", "AGAIN" (a kill, and another one of the process that replaces it), "STOP", "HELD" (stopped from its
    start on) or "TERM" (of the launcher); `share` is its time in an undisturbed run's length. A stop ends after
    `seconds`; a second kill comes a tenth of that after the start.
    """

    how: str
    victim: int
    share: float
    seconds: float


@dataclass(frozen=True)
class Case:
    """One run and its faults; `added` is the share at which a learner is added; None: there is none."""

    seed: int
    strategy: str
    learners: int
    restarts: int
    faults: tuple[Fault, ...]
    added: float | None

    @classmethod
    def drawn(cls, seed: int) -> Case:
        """Draw the case of a seed."""
        draw = random.Random(f"processes {seed}")
        strategy, learners = draw.choice(list(strategies())), draw.randint(2, 5)
        count = draw.choice((0, 1, 1, 2, 2, 3, 4))
        hows = draw.choices(("KILL", "AGAIN", "STOP", "HELD", "TERM"), (5, 2, 3, 1, 1), k=count)
        seconds = [draw.choice((0.1, 1.0, 4.0)) * draw.random() for _ in hows]
        faults = [
            Fault(how, draw.randrange(learners), draw.uniform(0.0, 1.1), s)
            for how, s in zip(hows, seconds, strict=True)
        ]
        added = draw.random() if strategy in ADDING and draw.random() < 0.5 else None
        return cls(seed, strategy, learners, draw.choice((0, 0, 1, 1, 2)), tuple(faults), added)


def strategies() -> Iterator[str]:
    """Yield the strategies that can be built, nested up to twice."""
    for inner, first, second in itertools.product(INNER, AROUND, AROUND):
        text = second.format(first.format(inner))
        with suppress(ValueError, TypeError):
            configure(experiment(), (), text)
            yield text


def experiment() -> Experiment:
    """The experiment of `murmur train benchmarks/fuzz_processes.py`."""
    return Experiment(Logged(), ADPSGD(), Budget(epochs=1), SGD(0.1), evaluate_every_epochs=0.25, scaling=Fixed())


def speak_to(said: Path) -> None:
    """Append all output of this process to a file."""
    with said.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def launched(request: RunRequest, folder: Path) -> int:
    """Act as the process of `murmur train`."""
    speak_to(folder / "said")
    setattr(training, "Launch", partial(ForkLaunch, out=request.out, born=folder / "born"))  # noqa: B010
    try:
        return training.train(request, request.experiment())
    except Stopped:
        return STOPPED_STATUS


def added_learner(request: RunRequest, folder: Path) -> int:
    """Act as the process of `murmur add`; 0 if the run has not begun or has ended."""
    speak_to(folder / "said-added")
    assert request.secret_file is not None
    try:
        more = one_more(request.out, request.secret_file, 1, trust=True)
    except (ValueError, ConnectionError) as error:
        print(error)
        return 0
    return run_learner(more.request, more.experiment, more.place).status


class Faults:
    """The faults of a case, carried out while its launch runs."""

    def __init__(self, faults: Sequence[Fault], folder: Path, launcher: int, length: float) -> None:
        self._folder, self._launcher, self._began = folder, launcher, time.monotonic()
        self.due: list[tuple[float, Callable[[], None]]] = [
            (0.0 if fault.how == "HELD" else fault.share * length, partial(self._carry_out, fault)) for fault in faults
        ]

    def poll(self) -> None:
        """Carry out what is due."""
        now = time.monotonic() - self._began
        due, self.due = [act for at, act in self.due if at <= now], [(at, act) for at, act in self.due if at > now]
        for act in due:
            act()

    def _carry_out(self, fault: Fault) -> None:
        now = time.monotonic() - self._began
        pid = self._launcher if fault.how == "TERM" else self._process_of(fault.victim)
        if pid is None:
            self.due.append((now + 0.01, partial(self._carry_out, fault)))
        elif fault.how in ("STOP", "HELD"):
            _send(pid, signal.SIGSTOP)
            self.due.append((now + fault.seconds, partial(_send, pid, signal.SIGCONT)))
        else:
            _send(pid, signal.SIGTERM if fault.how == "TERM" else signal.SIGKILL)
            if fault.how == "AGAIN":
                self.due.append((now, partial(self._await_next, fault, pid)))

    def _await_next(self, fault: Fault, before: int) -> None:
        """Wait for the process that replaces a killed one; kill it a little later."""
        now, pid = time.monotonic() - self._began, self._process_of(fault.victim)
        if pid in (None, before):
            self.due.append((now + 0.002, partial(self._await_next, fault, before)))
        else:
            self.due.append((now + 0.1 * fault.seconds, partial(_send, pid, signal.SIGKILL)))

    def _process_of(self, rank: int) -> int | None:
        born = self._folder / "born" / str(rank)
        return int(born.read_text()) if born.exists() else None


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def go(case: Case, folder: Path, resume: bool, length: float) -> int | None:
    """Run a launch to its end, with its faults unless it is resumed; return its status, None if it does not end."""
    secret = folder / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(0o600)
    out, logs, restarts = folder / "out", (f"task.folder={folder / 'log'}",), 0 if resume else case.restarts
    run = REQUEST(strategy=case.strategy, learners=case.learners, restarts=restarts)
    request = replace(run, out=out, settings=logs, secret_file=secret, resume=resume)
    shutil.rmtree(folder / "born", ignore_errors=True)
    launcher, more = Forked(partial(launched, request, folder)), list[Forked]()
    faults = Faults(() if resume else case.faults, folder, launcher.pid, length)
    if case.added is not None and not resume:
        faults.due.append((case.added * length, lambda: more.append(Forked(partial(added_learner, request, folder)))))
    until = time.monotonic() + BOUND_SECONDS
    while launcher.poll() is None and time.monotonic() < until:
        faults.poll()
        time.sleep(0.002)
    status, until = launcher.poll(), time.monotonic() + LAST_SECONDS
    while any(process.poll() is None for process in more) and time.monotonic() < until:
        time.sleep(0.01)
    if any(process.poll() is None for process in (launcher, *more)):
        show_stacks(folder)
        status = None
    for process in (launcher, *more):
        process.kill()
        process.wait()
    return status


def left(folder: Path) -> list[int]:
    """Processes of learners that are still there; they are killed."""
    time.sleep(0.1)
    pids = {int(log.stem) for log in (folder / "log").glob("*.log")}
    pids |= {int(file.read_text()) for file in (folder / "born").glob("[0-9]*")}
    found = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    for pid in found:
        _send(pid, signal.SIGKILL)
    return found


def judge(folder: Path, status: int | None, resume: bool) -> list[str]:
    """Faults in the end of a launch."""
    if status is None:
        return ["never ends"]
    wrong = [f"process {pid} is left" for pid in left(folder)]
    if status != 0 and (resume or status not in (PEER_LOST_STATUS, STOPPED_STATUS, -signal.SIGTERM)):
        return [*wrong, f"exception: status {status}"]
    if "Traceback" in (folder / "said").read_text(errors="replace"):
        wrong.append("exception: a traceback")
    if status == 0:
        wrong += [f"exception: status 0 without {n}" for n in training.WHOLE if not (folder / "out" / n).is_file()]
        done = {n for log in (folder / "log").glob("*.log") for n in log.read_text().split()}
        wrong += [f"{MINIBATCHES - len(done)} undone"] if len(done) < MINIBATCHES else []
    return wrong


def perform(case: Case, folder: Path, length: float) -> dict[str, Any]:
    """Run a case, resume the run if it did not finish, and return its line."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    status = go(case, folder, False, length)
    seconds, wrong, resumed = time.monotonic() - began, judge(folder, status, False), None
    if status not in (0, None):
        resumed = go(case, folder, True, length)
        wrong += [f"resumed: {each}" for each in judge(folder, resumed, True)]
    if not wrong:
        shutil.rmtree(folder)
    faults = [vars(fault) for fault in case.faults]
    return {**vars(case), "faults": faults, "status": status, "seconds": seconds, "resumed": resumed, "wrong": wrong}


def campaign(seeds: range, out: Path) -> list[dict[str, Any]]:
    """Perform all seeds that are not done yet; return the lines of all."""
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "fuzz.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done, whole = {row["seed"] for row in rows}, Case(-1, "KAVG(K=4)", 3, 0, (), None)
    length = perform(whole, out / "undisturbed", 0.0)["seconds"] if not done >= set(seeds) else 0.0
    for seed in (s for s in seeds if s not in done):
        row = perform(Case.drawn(seed), out / f"seed-{seed}", length)
        with kept.open("a") as file:
            file.write(json.dumps(row) + "\n")
        rows.append(row)
        print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return [row for row in rows if row["seed"] in seeds]


def summary(rows: Sequence[Mapping[str, Any]], seeds: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figures and bars."""
    wrong = [each for row in rows for each in row["wrong"]]
    figures = {
        "seeds": len(rows),
        "hours": sum(row["seconds"] for row in rows) / 3600,
        "statuses": dict(Counter(str(row["status"]) for row in rows)),
        "faults": dict(Counter(fault["how"] for row in rows for fault in row["faults"])),
        "wrong": [f"seed {row['seed']}: {each}" for row in rows for each in row["wrong"]],
    }
    undone_by = [int(each.removeprefix("resumed: ").split()[0]) for each in wrong if each.endswith("undone")]
    return figures, [
        bar("seeds", len(rows), seeds, at_most=False),
        bar("minibatches undone", sum(undone_by), 0),
        bar("runs that never end", sum("never ends" in each or "left" in each for each in wrong), 0),
        bar("exceptions", sum("exception" in each for each in wrong), 0),
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=500)
    options.add_argument("--first", type=int, default=0)
    options.add_argument(
        "--out", type=Path, default=Path("runs/fuzz-processes"), help="folder of lines and failed runs"
    )
    options.add_argument("--keep", action="store_true", help="keep the record for RESULTS.md")
    given = options.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="murmur: %(message)s", stream=sys.stderr)
    seeds = range(given.first, given.first + given.seeds)
    figures, bars = summary(campaign(seeds, given.out.resolve()), given.seeds)
    if given.keep:
        close("fuzz_processes", figures, bars)
    else:
        print(json.dumps({"benchmark": "fuzz_processes", "figures": figures, "bars": bars}))
    sys.exit(0 if all(b["holds"] for b in bars) else 1)


if __name__ == "__main__":
    main()
