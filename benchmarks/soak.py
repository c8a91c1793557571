"""A long run with continuous faults: four ADPSGD learners that are killed, stopped, throttled, cut off and restarted.

    make soak                                         (an hour; as root on separate hosts, see namespaces.py)
    python benchmarks/soak.py --minutes 5 --every 8

The launcher starts the learners and restarts them. Requirements: the run always makes progress; it finishes; every
minibatch is done, and hardly any twice; and nothing grows: resident memory, threads and descriptors of every long-lived
process (learner 0 is never killed, so that there is one), and keys of the store. A slope is the one of Theil
and Sen (the median over all pairs of samples) of the samples after the first third, times the seconds that they
span; memory uses those after the first half, since caches fill for longer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch

from measure import bar, close
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.trainer import Trainer
from murmur.strategies import ADPSGD
from murmur.worlds.process.environment import Place, place_of
from murmur.worlds.process.launcher import Launch, Restart
from murmur.worlds.process.store_server import StoreClient
from murmur.worlds.process.world import ProcessWorld
from namespaces import Network, hosts, refusal, run
from trouble import LOOPBACK, PacedRegression, StepLog, steps_of

KIND = "long"
SIZE, SECONDS, BITS, SLOW_BITS = 4, 0.05, 1e9, 2e6
WITNESS = 0  # never killed
LENGTHS = (0.1, 1.5)  # of faults that pass, in seconds between faults
PACE = 0.8  # share of the undisturbed pace (measured), which sets the budget for the given minutes
HANG_SECONDS, LOOK_SECONDS, MOST_SAMPLES, LEAST_SECONDS = 60.0, 0.5, 400, 60.0
STARTING_SECONDS = 120.0  # no learner takes a step while four interpreters start
BEGUN = 0.1  # share of the minibatches after which the setup is complete, including the first evaluation
TOLERANCES = {"memory_bytes": 8e6, "threads": 0.5, "descriptors": 0.5, "keys": 0.5}
CLAIMS_AT_RISK = 4  # minibatches that one fault may repeat: those done but not yet reported


@dataclass(frozen=True)
class Sample:
    """A process at a moment."""

    at: float
    memory_bytes: float
    threads: float
    descriptors: float


def look_at(pid: int) -> Sample | None:
    """State of a process according to /proc; None if it is gone or being started."""
    try:
        words = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    if "VmRSS" not in words:
        return None
    return Sample(time.monotonic(), 1024.0 * int(words["VmRSS"].split()[0]), int(words["Threads"]), descriptors)


def growth(times: Sequence[float], values: Sequence[float]) -> float:
    """Growth of a value over the samples: the median slope of all pairs, times the span."""
    every = max(1, len(times) // MOST_SAMPLES)
    t = torch.tensor(times[::every], dtype=torch.float64)
    v = torch.tensor(values[::every], dtype=torch.float64)
    i, j = torch.triu_indices(len(t), len(t), 1)
    slope = float(((v[j] - v[i]) / (t[j] - t[i])).median())
    return slope * (times[-1] - times[0])


def store_process() -> int | None:
    """Process number of the key-value server, which the launcher has started beside the learners."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return next((int(c) for c in children if b"murmur.worlds.process.store_server" in command_of(int(c))), None)


def command_of(pid: int) -> bytes:
    """A process's command line; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@dataclass
class Watch:
    """Causes faults in a launch, samples its processes, and ends it if it makes no progress.

    Attributes:
        folder: folder of the learners' steps.
        minibatches: number of minibatches in the run.
        network: hosts of the learners; None for this host alone, where links are neither cut nor throttled.
        every_seconds: mean time between faults.
        draw: source of moments, learners and faults.
        launch: launch under observation.
        samples: samples of each process, by (kind, number).
        keys: tuples (time, keys in the store).
        faults: number of faults of each kind.
        hung: True if the run had to be ended.
        place: place of the learner started last.
        over: event set at the end of the run.
    """

    folder: Path
    minibatches: int
    network: Network | None
    every_seconds: float
    draw: random.Random
    launch: Launch = field(init=False)
    samples: dict[tuple[str, int], list[Sample]] = field(default_factory=lambda: defaultdict(list))
    keys: list[tuple[float, float]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    hung: bool = False
    place: Place | None = None
    over: Event = field(default_factory=Event)

    def command(self, place: Place, resume: bool) -> list[str]:
        """A learner's command line, for the launcher."""
        self.place = place
        words = [sys.executable, __file__, "--learner", str(self.folder)]
        return words if self.network is None else self.network.inside(place.rank, words)

    def trouble(self) -> None:
        """Cause faults at random moments, in a thread; at most two at a time."""
        pending: list[tuple[float, int, str]] = []
        next_at = time.monotonic() + self.every_seconds
        while not self.over.wait(0.05):
            now = time.monotonic()
            for ending in [p for p in pending if p[0] <= now]:
                pending.remove(ending)
                self.end(ending[1], ending[2])
            if now < next_at:
                continue
            next_at = now + self.draw.expovariate(1 / self.every_seconds)
            free = [r for r in range(SIZE) if r not in [p[1] for p in pending] and self.pid(r) is not None]
            if len(pending) < 2 and free and self.moving():
                rank = self.draw.choice(free)
                kind = self.draw.choice(self.kinds(rank))
                pending.append((now + self.draw.uniform(*LENGTHS) * self.every_seconds, rank, kind))
                self.begin(rank, kind)
        for _, rank, kind in pending:
            self.end(rank, kind)

    def kinds(self, rank: int) -> list[str]:
        """The kinds of faults possible for a learner."""
        here = ["stop"] if rank == WITNESS else ["stop", "kill"]
        return here if self.network is None else [*here, "cut", "throttle"]

    def moving(self) -> bool:
        """True if every learner has taken a step; before that, the run has not begun."""
        return all(steps_of(self.folder / f"{r}.steps")[:1] for r in range(SIZE))

    def pid(self, rank: int) -> int | None:
        units = self.launch.units
        process = units[rank].process if len(units) == SIZE else None
        return process.pid if process is not None and process.poll() is None else None

    def begin(self, rank: int, kind: str) -> None:
        """Begin a fault."""
        self.faults[kind] += 1
        pid = self.pid(rank)
        with suppress(ProcessLookupError):  # it has just ended by itself
            if pid is not None and kind in ("stop", "kill"):
                os.kill(pid, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
        if self.network is not None and kind == "cut":
            run(f"ip link set {self.network.port(rank)} down")
        elif self.network is not None and kind == "throttle":
            self.network.limit(rank, SLOW_BITS)

    def end(self, rank: int, kind: str) -> None:
        """End a fault."""
        pid = self.pid(rank)
        with suppress(ProcessLookupError):
            if pid is not None and kind == "stop":
                os.kill(pid, signal.SIGCONT)
        if self.network is not None and kind == "cut":
            run(f"ip link set {self.network.port(rank)} up")
        elif self.network is not None and kind == "throttle":
            self.network.limit(rank, BITS)

    def look(self) -> None:
        """Sample, in a thread; end a run without a step for a long time."""
        size, moved, store, begun = 0, time.monotonic() + STARTING_SECONDS, None, False
        while not self.over.wait(LOOK_SECONDS):
            now = time.monotonic()
            grown = sum(file.stat().st_size for file in self.folder.glob("*.steps"))
            size, moved = grown, now if grown > size else moved
            if now - moved > HANG_SECONDS:
                self.hung = True
                os.kill(os.getpid(), signal.SIGTERM)  # the launcher ends its learners
                return
            begun = begun or sum(len(steps_of(file)) for file in self.folder.glob("*.steps")) > BEGUN * self.minibatches
            if not begun:
                continue
            for rank in range(SIZE):
                self.sample(f"learner {rank}", self.pid(rank))
            self.sample("store", store_process())
            try:
                if store is None and self.place is not None:
                    store = StoreClient(self.place.host, self.place.port, 10.0, self.launch.secret)
                if store is not None:
                    self.keys.append((now, store.call({"do": "size"})[0]["total"]))
            except ConnectionError:
                return  # the launcher has ended it with the run

    def sample(self, what: str, pid: int | None) -> None:
        found = None if pid is None else look_at(pid)
        if pid is not None and found is not None:
            self.samples[what, pid].append(found)


@contextmanager
def beside(watch: Watch) -> Iterator[None]:
    """Context that runs both threads of a watch."""
    threads = [Thread(target=work, daemon=True) for work in (watch.trouble, watch.look)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        watch.over.set()
        for thread in threads:
            thread.join()


def learner(place: Place, folder: Path, minibatches: int) -> None:
    """One learner of the run."""
    torch.set_num_threads(1)
    task = PacedRegression(SECONDS, minibatches)
    log = StepLog(folder / f"{place.rank}.steps", task, lambda: 0)
    experiment = Experiment(task, ADPSGD(), Budget(epochs=1), SGD(0.05), evaluate_every_epochs=0.05, scaling=Fixed())
    Trainer(experiment, ProcessWorld(place), observers=lambda _: (log,)).fit()


def soak(network: Network | None, minutes: float, every_seconds: float, seed: int) -> tuple[dict[str, Any], list[Any]]:
    """Perform one run; return figures and bars."""
    minibatches = round(minutes * 60 * SIZE / SECONDS * PACE)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "minibatches").write_text(str(minibatches))
        watch = Watch(folder, minibatches, network, every_seconds, random.Random(seed))
        launch = watch.launch = Launch(
            watch.command, SIZE, 1_000_000, Restart.ALONE, LOOPBACK if network is None else network.store_address
        )
        began = time.monotonic()
        with beside(watch):
            try:
                status = launch.run()
            except SystemExit:
                status = 1
        seconds = time.monotonic() - began
        done = Counter(step.minibatch for r in range(SIZE) for step in steps_of(folder / f"{r}.steps"))
    twice = sum(done.values()) - len(done)
    faults = sum(watch.faults.values())
    restarts = sum(1_000_000 - unit.restarts_left for unit in launch.units)
    figures = {"minutes": seconds / 60, "minibatches": minibatches, "faults": dict(watch.faults), "restarts": restarts}
    bars = [
        bar("exit status of the launcher", status, 0),
        bar(f"ended because nothing moved for {HANG_SECONDS:g} s", float(watch.hung), 0),
        bar("minibatches that nobody did", minibatches - len(done), 0),
        bar("minibatches done twice, a fault", twice / max(1, faults), CLAIMS_AT_RISK),
    ]
    return figures, bars + slopes(watch)


def slopes(watch: Watch) -> list[dict[str, Any]]:
    """Bars of values that must not grow, for processes that lived for at least half of the run; empty if too short."""
    bars = []
    longest = max((own[-1].at - own[0].at for own in watch.samples.values()), default=0.0)
    for (what, pid), own in watch.samples.items():
        if own[-1].at - own[0].at < longest / 2:
            continue
        for name in ("memory_bytes", "threads", "descriptors"):
            kept = own[len(own) // (2 if name == "memory_bytes" else 3) :]
            if kept[-1].at - kept[0].at < LEAST_SECONDS:
                continue
            found = growth([s.at for s in kept], [getattr(s, name) for s in kept])
            bars.append(
                bar(f"{what} ({pid}): {name} grown in {kept[-1].at - kept[0].at:.0f} s", found, TOLERANCES[name])
            )
    kept_keys = watch.keys[len(watch.keys) // 3 :]
    if kept_keys and kept_keys[-1][0] - kept_keys[0][0] >= LEAST_SECONDS:
        bars.append(bar("keys of the store grown", growth(*zip(*kept_keys, strict=True)), TOLERANCES["keys"]))
    return bars


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=60.0, help="about so long")
    options.add_argument("--every", type=float, default=15.0, help="seconds between faults, on average")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--here", action="store_true", help="all on this host, whose links stay")
    options.add_argument("--keep", action="store_true", help="keep the record for RESULTS.md")
    options.add_argument("--learner", type=Path, metavar="FOLDER", help="be one of the learners")
    given = options.parse_args()
    place = place_of()
    if given.learner is not None and place is not None:
        learner(place, given.learner, int((given.learner / "minibatches").read_text()))
        return
    reason = "--here was given" if given.here else refusal()
    if reason is not None:
        print(f"kills and stops only, no links are cut or throttled: {reason}")
    with nullcontext(None) if reason is not None else hosts(SIZE, BITS) as network:
        figures, bars = soak(network, given.minutes, given.every, given.seed)
    figures["links"] = reason or "cut and throttled"
    if given.keep:
        close("soak", figures, bars)
    else:
        for b in bars:
            print(f"{'holds ' if b['holds'] else 'MISSED'}  {b['what']}: {b['value']:.4g} (bar {b['bar']:g})")
        print(json.dumps({"benchmark": "soak", "figures": figures, "bars": bars}))
    sys.exit(0 if all(b["holds"] for b in bars) else 1)


if __name__ == "__main__":
    main()
