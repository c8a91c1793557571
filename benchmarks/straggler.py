"""Cost of one slow learner for the others: four learners on four hosts, the second one slow in different ways.

Slow compute (2, 10, 100 times), a slow machine (stopped for nine tenths of every second), a slow link (1/100 of the
bandwidth). ADPSGD on the ring should lose no more than the straggler's own share; lock-step strategies fall to the
straggler's pace. The gradient is paced (`paced.py`): it takes its time without the processor.

    python benchmarks/straggler.py      (as root)
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch

from measure import bar, close
from murmur.core.facts import FactsOfInner
from murmur.core.learner import Learner, Strategy
from murmur.strategies import ADPSGD, KAVG, SyncSGD
from murmur.strategies.delay_by_one import DelayByOne
from murmur.worlds.process.environment import Place, place_of
from namespaces import HostLearners, Network, hosts, learners, obey, refusal
from paced import Paced, train

KIND = "bar"
SECONDS, NUMEL, BITS = 0.12, 10_240, 82e6  # a vector takes 4 ms on a good link, 0.4 s on the slow one
ALL_RANKS, SLOW, FAR = [0, 1, 2, 3], 1, 3  # ring: 0 and 2 are beside the straggler, 3 is not
MINIBATCHES, K = 240, 4
SAMPLE_SECONDS, COORDINATES = 0.1, 64
STOPPED_SECONDS, RUNNING_SECONDS = 0.9, 0.1
LOCK_STEP: dict[str, Strategy] = {"SyncSGD": SyncSGD(), f"KAVG({K})": KAVG(K), "DelayByOne": DelayByOne()}
STRATEGIES: dict[str, Strategy] = {"ADPSGD": ADPSGD(), **LOCK_STEP}


@dataclass(frozen=True)
class Case:
    """One kind of slowness.

    Attributes:
        slowness: slowness s of the straggler's gradient.
        compute: factor on the seconds of the straggler's gradient.
        link: factor on the straggler's bandwidth.
        bursts: stop its process for most of the time.
    """

    name: str
    slowness: float = 1.0
    compute: float = 1.0
    link: float = 1.0
    bursts: bool = False


CASES = [
    Case("compute 2x", 2, compute=2),
    Case("compute 10x", 10, compute=10),
    Case("compute 100x", 100, compute=100),
    Case("stopped machine", (STOPPED_SECONDS + RUNNING_SECONDS) / RUNNING_SECONDS, bursts=True),
    Case("link 1/100", link=0.01),
]


@dataclass(frozen=True)
class Watched(FactsOfInner):
    """A strategy whose learner is sampled ten times a second: [time, averages so far, some of its weights]."""

    strategy: Strategy
    began: Path = field(repr=False)  # a file that appears when training begins
    seen: list[tuple[float, int, list[float]]] = field(default_factory=list, repr=False)

    @property
    def inner(self) -> Strategy:
        return self.strategy

    async def __call__(self, me: Learner) -> None:
        self.began.touch()
        over = Event()
        Thread(target=self.watch, args=(me, over), daemon=True).start()
        try:
            await self.strategy(me)
        finally:
            over.set()

    def watch(self, me: Learner, over: Event) -> None:
        while not over.wait(SAMPLE_SECONDS):
            w = me.weights.snapshot()[:COORDINATES].tolist()
            self.seen.append((time.monotonic(), 0 if me.lock_step else me.averager.exchanges, w))


def run(place: Place, strategy: str, minibatches: int, compute: float, folder: str) -> None:
    """A learner's side of a run; writes its observations to a file, since its link may be slow."""
    watched = Watched(STRATEGIES[strategy], Path(folder, f"{place.rank} began"))
    task = Paced(SECONDS, NUMEL, slowness=compute if place.rank == SLOW else 1.0)
    ran = train(place, task, watched, minibatches)
    Path(folder, f"{place.rank}.json").write_text(json.dumps({**asdict(ran), "seen": watched.seen}))


@dataclass(frozen=True)
class Seen:
    """Observations of a run, without its beginning and end.

    Attributes:
        learners: steps, samples of weights and end of each learner; times on one clock.
        start, spent: time from which all were under way, and time at which no minibatch was left to hand out.
    """

    learners: Sequence[Mapping[str, Any]]
    start: float
    spent: float

    @property
    def steps_per_second(self) -> float:
        return sum(self.of_learner(r) for r in ALL_RANKS)

    def of_learner(self, rank: int) -> float:
        inside = [t for t in self.learners[rank]["steps"] if self.start <= t <= self.spent]
        if rank == SLOW or len(inside) < 3:
            return len(inside) / (self.spent - self.start)
        return (len(inside) - 1) / (inside[-1] - inside[0])

    @property
    def straggler_steps_per_second(self) -> float:
        return self.of_learner(SLOW)

    @property
    def far_exchanges_per_second(self) -> float:
        """Averages per second of the learner that is not next to the straggler, with both its neighbours."""
        inside = [(t, e) for t, e, _ in self.learners[FAR]["seen"] if self.start <= t <= self.spent]
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

    @property
    def consensus_distance(self) -> float:
        """Root of the mean over time and learners of |w_i - mean w|^2 (for the sampled coordinates)."""
        squares, t = [], self.start
        while t < self.spent:
            rows = [[w for at, _, w in s["seen"] if at <= t][-1:] for s in self.learners]
            if all(rows):
                w = torch.tensor([row[0] for row in rows])
                squares.append(float((w - w.mean(0)).square().sum(1).mean()))
            t += SAMPLE_SECONDS
        return statistics.fmean(squares) ** 0.5

    @property
    def seconds_after_spent(self) -> float:
        return max(s["ended"] for s in self.learners) - self.spent

    @property
    def compute_to_cpu(self) -> float:
        """Seconds of the gradient over CPU seconds of a step, for the busiest of the equal learners."""
        used = [(s["cpu"][-1] - s["cpu"][0]) / (len(s["cpu"]) - 1) for r, s in enumerate(self.learners) if r != SLOW]
        return SECONDS / max(used)

    def figures(self) -> dict[str, float]:
        names = """steps_per_second straggler_steps_per_second far_exchanges_per_second consensus_distance
            seconds_after_spent compute_to_cpu"""
        return {name: getattr(self, name) for name in names.split()}


def perform(running: HostLearners, network: Network, strategy: str, case: Case, minibatches: int) -> Seen:
    """Run a case, with the straggler slowed down meanwhile."""
    network.limit(SLOW, BITS * case.link)
    with tempfile.TemporaryDirectory() as folder:
        running.order("run", ALL_RANKS, strategy=strategy, minibatches=minibatches, compute=case.compute, folder=folder)
        slow_since = burst(running, Path(folder, f"{SLOW} began")) if case.bursts else 0.0
        running.results(ALL_RANKS)
        found = [json.loads(Path(folder, f"{r}.json").read_text()) for r in ALL_RANKS]
    network.limit(SLOW, BITS)
    even = [s for r, s in enumerate(found) if r != SLOW]
    start = max(slow_since, *(s["steps"][min(5, len(s["steps"]) - 1)] for s in even))
    return Seen(found, start, min(s["steps"][-1] for s in even))


def burst(running: HostLearners, began: Path) -> float:
    """Stop and continue the straggler's process from its first step to the end of its run; return the start."""
    while not began.exists() and not running.done(SLOW):
        time.sleep(0.01)
    pid, since = running.processes[SLOW].pid, time.monotonic()
    try:
        while not running.done(SLOW):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED_SECONDS)
            os.kill(pid, signal.SIGCONT)
            time.sleep(RUNNING_SECONDS)
    finally:
        os.kill(pid, signal.SIGCONT)
    return since


def asynchronous(running: HostLearners, network: Network) -> dict[str, dict[str, float]]:
    """ADPSGD in every case, with the equal run before and after."""
    found: dict[str, dict[str, float]] = {}
    for case in [Case("equal"), *CASES, Case("equal again")]:
        found[case.name] = perform(running, network, "ADPSGD", case, MINIBATCHES).figures()
        print(f"ADPSGD, {case.name}: " + "  ".join(f"{k} {v:.4g}" for k, v in found[case.name].items()), flush=True)
    return found


def lock_step(running: HostLearners, network: Network) -> dict[str, dict[str, float]]:
    """Steps per second of all learners, by strategy and case; the slowest case with one strategy only."""
    found: dict[str, dict[str, float]] = {}
    for name in LOCK_STEP:
        found[name] = {}
        rounds = K if name.startswith("KAVG") else 1
        for case in [Case("equal"), *CASES]:
            if case.slowness > 50 and name != "SyncSGD":
                continue
            turns = 2 if case.slowness > 50 else 3 * rounds + (0 if rounds > 1 else 3)
            steps = perform(running, network, name, case, turns * len(ALL_RANKS)).learners[0]["steps"]
            begin = 0 if turns == 2 else rounds - 1  # averaging comes after the K-th step
            found[name][case.name] = (turns - 1 - begin) * len(ALL_RANKS) / (steps[-1] - steps[begin])
        print(f"{name}, steps per second: " + "  ".join(f"{k} {v:.3g}" for k, v in found[name].items()), flush=True)
    return found


def bars_of(
    found: Mapping[str, Mapping[str, float]], locked: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    equal = {k: (v + found["equal again"][k]) / 2 for k, v in found["equal"].items()}
    bars = []
    for case in CASES:
        here, size = found[case.name], len(ALL_RANKS)
        share = here["steps_per_second"] / equal["steps_per_second"]
        fair = 0.9 * (size - 1 + 1 / case.slowness) / size
        rounds = here["far_exchanges_per_second"] / equal["far_exchanges_per_second"]
        distance = here["consensus_distance"] / equal["consensus_distance"]
        last = SECONDS * case.compute * (case.slowness if case.bursts else 1) + 2
        bars += [
            bar(f"ADPSGD, {case.name}: samples per second / equal run", share, fair, at_most=False),
            bar(f"ADPSGD, {case.name}: exchanges of the learner away from it / equal run", rounds, 0.8, at_most=False),
            bar(f"ADPSGD, {case.name}: consensus distance / equal run", distance, 2),
            bar(f"ADPSGD, {case.name}: seconds from budget spent to end", here["seconds_after_spent"], last),
        ]
    for name, rates in locked.items():
        for case in CASES:
            if case.name in rates and case.slowness > 1:
                fallen = rates[case.name] / rates["equal"] * case.slowness
                bars.append(bar(f"{name}, {case.name}: share of the equal run x s (it falls to 1/s)", fallen, 1.3))
    return bars


def main() -> None:
    torch.set_num_threads(1)
    place = place_of()
    if place is not None:
        obey(place, {"run": run})
        return
    reason = refusal()
    if reason is not None:
        print(f"straggler cannot run: {reason}")
        print(json.dumps({"benchmark": "straggler", "figures": {}, "bars": [], "cannot_run": reason}))
        return
    with hosts(len(ALL_RANKS), BITS) as network, learners(network, ALL_RANKS, [sys.executable, __file__]) as running:
        found = asynchronous(running, network)
        locked = lock_step(running, network)
    close("straggler", {"ADPSGD": found, "lock_step_steps_per_second": locked}, bars_of(found, locked))


if __name__ == "__main__":
    main()
