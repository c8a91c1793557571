"""Does the virtual cluster tell the wall time of real learners? 2 and 4 of them, three networks, four strategies.

Every cell (learners, bandwidth, with or without a straggler, strategy) trains for real on hosts made of network
namespaces, and once in virtual time. What the virtual cluster is told is measured beforehand on two of the hosts:
seconds of a step alone, of a small message, of a mean of two vectors and of adding them. Nothing is fitted to a cell.
The gradient is paced (`paced.py`): it takes its time without the processor. Every cell runs twice, in two passes over
all of them, and the faster run counts: what else runs on the machine can only slow one down. Needs root, `ip` and `tc`.

    python benchmarks/simulator_fidelity.py      (as root)
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor

from measure import bar, close
from murmur.learner import Strategy
from murmur.plan.timing import time_strategy
from murmur.strategies import ADPSGD, KAVG, SyncSGD
from murmur.strategies.delay_by_one import DelayByOne
from murmur.world import Seat
from murmur.worlds.torch.environment import Place, place_of
from murmur.worlds.torch.world import TorchWorld
from murmur.worlds.virtual.cluster import Cluster, Constant, Link
from namespaces import Flock, Network, hosts, learners, obey, refusal
from paced import Paced, train

# Below 1 MiB the gradient is one bucket: the mean of SyncSGD begins when the backward pass is over, as in the model.
SECONDS, NUMEL, PARTS, K = 0.12, 240_000, 2, 4
BITS = {"100 Mb/s": 100e6, "400 Mb/s": 400e6, "1 Gb/s": 1e9}
MTU = 9000  # with packets of 1500 bytes the emulated network costs two cores more time than 1 Gb/s does
SIZES, PAIR, SLOW, SLOWNESS = (2, 4), [0, 1], 1, (1.0, 2.0)
STRATEGIES: dict[str, tuple[Strategy, int]] = {  # and minibatches for each learner
    "SyncSGD": (SyncSGD(), 9),
    f"KAVG({K})": (KAVG(K), 3 * K),
    "DelayByOne": (DelayByOne(), 10),
    "ADPSGD": (ADPSGD(), 18),
}
ALONE_STEPS, REPEATS, PASSES = 12, 11, 2
WITHIN, TIE = 0.10, 0.03


@dataclass(frozen=True)
class Noted(Paced):
    """A paced task that notes when its minibatches are asked for."""

    asked: list[float] = field(default_factory=list, repr=False)

    def minibatch(self, n: int) -> tuple[Tensor, float]:
        self.asked.append(time.monotonic())
        return super().minibatch(n)


@dataclass(frozen=True)
class Ran:
    """A learner's side of a cell, on the machine's one clock: when its first gradient began and its last step ended."""

    began: float
    ended: float
    cpu_seconds_per_step: float


@dataclass(frozen=True)
class Cell:
    """One run: so many learners, what network, how slow learner 1 is, which strategy."""

    learners: int
    network: str
    slowness: float
    strategy: str

    @property
    def minibatches(self) -> int:
        return STRATEGIES[self.strategy][1] * self.learners

    def __str__(self) -> str:
        slow = "" if self.slowness == 1 else f", one {self.slowness:g}x slower"
        return f"{self.learners} learners, {self.network}{slow}, {self.strategy}"


@dataclass(frozen=True)
class Pair:
    """What two learners measure: medians, in seconds.

    Attributes:
        message: a small message and its answer.
        mean: the mean of a vector of both.
        exchange: a vector of each to the other.
        adding: one vector to another.
    """

    message: float
    mean: float
    exchange: float
    adding: float

    def link(self) -> Link:
        """The mean is 2 messages of half a vector and an addition of half of one: 2 (a + b / 2 B) + adding / 2."""
        latency = self.message / 2
        return Link(latency, 4 * NUMEL / (self.mean - 2 * latency - self.adding / 2))


def train_cell(place: Place, strategy: str, minibatches: int, slowness: float) -> dict[str, float]:
    """A learner's side of a cell."""
    task = Noted(SECONDS, NUMEL, PARTS, slowness if place.rank == SLOW else 1.0)
    ran = train(place, task, STRATEGIES[strategy][0], minibatches)
    return asdict(Ran(task.asked[0], ran.steps[-1], ran.cpu_seconds_per_step))


def alone(place: Place, slowness: float) -> tuple[float, float]:
    """Seconds of a step of a learner with nobody else, and of them on the processor."""
    own = Place(0, 1, 0, place.host, place.port, generation=place.generation * 1000 + place.rank)
    ran = train(own, Paced(SECONDS, NUMEL, PARTS, slowness), SyncSGD(), ALONE_STEPS)
    return ran.seconds_per_step, ran.cpu_seconds_per_step


def exchanges(place: Place) -> dict[str, float]:
    """What two learners measure of their network; the first one's figures hold."""
    x, small, other = torch.zeros(NUMEL), torch.zeros(1), 1 - place.rank
    times: dict[str, list[float]] = {name: [] for name in ("message", "mean", "exchange", "adding")}

    @contextmanager
    def timed(what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        times[what].append(time.monotonic() - began)

    async def program(seat: Seat) -> None:
        group = seat.group
        for _ in range(REPEATS):
            await group.broadcast(small)  # together
            with timed("message"):
                if place.rank == 0:
                    group.post(small, other)
                await group.recv(other)
                if place.rank == 1:
                    group.post(small, other)
            await group.broadcast(small)
            with timed("mean"):
                await group.start_sum(x)
            await group.broadcast(small)
            with timed("exchange"):
                group.post(x, other)
                await group.recv(other)
            with timed("adding"):
                x.add_(x)

    TorchWorld(place, timeout_seconds=60).run(program)
    return {what: statistics.median(found[1:]) for what, found in times.items()}


@dataclass(frozen=True)
class Told:
    """What the virtual cluster is told.

    Attributes:
        seconds: of a step.
        factors: how much longer one takes that is so much slower.
        links: by the name of the network.
        reduce_bytes_per_second: of adding vectors.
    """

    seconds: float
    factors: Mapping[float, float]
    links: Mapping[str, Link]
    reduce_bytes_per_second: float

    def seconds_of(self, cell: Cell) -> float:
        """The virtual cluster's answer."""
        cluster = Cluster(
            learners=cell.learners,
            compute=Constant(self.seconds, {SLOW: self.factors[cell.slowness]}),
            link=self.links[cell.network],
            message_bytes=4.0 * NUMEL,
            reduce_bytes_per_second=self.reduce_bytes_per_second,
        )
        return time_strategy(STRATEGIES[cell.strategy][0], cluster, cell.minibatches).seconds


def limit(network: Network, name: str) -> None:
    for host in range(max(SIZES)):
        network.limit(host, BITS[name])


def measure(flock: Flock, network: Network) -> tuple[Told, dict[str, Any]]:
    """What two learners tell of themselves and of every network, before any cell."""
    steps: dict[float, float] = {}
    cpu = []
    for slowness in SLOWNESS:
        found = flock.do("alone", PAIR, slowness=slowness)
        steps[slowness] = statistics.fmean(seconds for seconds, _ in found)
        cpu.append(max(used for _, used in found) / slowness)
    pairs = {}
    for name in BITS:
        limit(network, name)
        pairs[name] = Pair(**flock.do("exchanges", PAIR)[0])
        print(f"{name}: {pairs[name]}, {pairs[name].link()}", flush=True)
    adding = statistics.median(pair.adding for pair in pairs.values())
    factors = {slowness: seconds / steps[1.0] for slowness, seconds in steps.items()}
    told = Told(steps[1.0], factors, {name: pair.link() for name, pair in pairs.items()}, 4 * NUMEL / adding)
    print(f"a step {told.seconds:.4f} s, slower ones {factors}, sleep / CPU of a step {SECONDS / max(cpu):.1f}")
    raw = {
        "pair": {n: asdict(p) for n, p in pairs.items()},
        "step_seconds": steps[1.0],
        "factors": list(factors.items()),
    }
    return told, {**raw, "compute_to_cpu": SECONDS / max(cpu)}


def really(flock: Flock, cell: Cell) -> float:
    """Wall seconds from the first gradient's begin to the last step."""
    how = {"strategy": cell.strategy, "minibatches": cell.minibatches, "slowness": cell.slowness}
    found = [Ran(**ran) for ran in flock.do("train", range(cell.learners), **how)]
    return max(ran.ended for ran in found) - min(ran.began for ran in found)


def wrong_pairs(cells: Sequence[tuple[Cell, float, float]]) -> tuple[list[str], int]:
    """Strategies of one setting that the virtual cluster ranks the wrong way round, and how many pairs are told apart.

    Real seconds a minibatch that differ by less than TIE are not told apart.
    """
    wrong, apart = [], 0
    for (a, real_a, virtual_a), (b, real_b, virtual_b) in combinations(cells, 2):
        setting = [(c.learners, c.network, c.slowness) for c in (a, b)]
        if setting[0] != setting[1]:
            continue
        real = (real_a / a.minibatches) / (real_b / b.minibatches)
        virtual = (virtual_a / a.minibatches) / (virtual_b / b.minibatches)
        if max(real, 1 / real) > 1 + TIE:
            apart += 1
            if virtual == 1 or (real > 1) != (virtual > 1):
                wrong.append(f"{a} against {b.strategy}: really {real:.3f}, virtually {virtual:.3f}")
    return wrong, apart


def report(found: Sequence[tuple[Cell, float, float]], told: Mapping[str, Any]) -> None:
    errors = {str(cell): virtual / real - 1 for cell, real, virtual in found}
    for cell, error in errors.items():
        print(f"{cell}: predicted / real {error:+.1%}")
    wrong, apart = wrong_pairs(found)
    for line in wrong:
        print(f"wrong order: {line}")
    largest = {s: max((abs(errors[str(c)]) for c, _, _ in found if c.strategy == s), default=0.0) for s in STRATEGIES}
    bars = [
        *(bar(f"{s}: largest |predicted / real - 1| of a cell", e, WITHIN) for s, e in largest.items()),
        bar("share of cells within 10 %", statistics.fmean(abs(e) <= WITHIN for e in errors.values()), 1.0, False),
        bar(f"pairs of strategies in the wrong order, of {apart} that differ by more than 3 %", len(wrong), 0),
        bar("sleep of a gradient / CPU seconds of a step alone", told["compute_to_cpu"], 20, at_most=False),
    ]
    cells = [{**asdict(c), "real_seconds": r, "predicted_seconds": v} for c, r, v in found]
    close("simulator_fidelity", {"told": dict(told), "cells": cells, "wrong_order": wrong}, bars)


def main() -> None:
    torch.set_num_threads(1)
    place = place_of()
    if place is not None:
        obey(place, {"train": train_cell, "alone": alone, "exchanges": exchanges})
        return
    reason = refusal()
    if reason is not None:
        print(f"simulator_fidelity cannot run: {reason}")
        print(json.dumps({"benchmark": "simulator_fidelity", "figures": {}, "bars": [], "cannot_run": reason}))
        return
    everybody = list(range(max(SIZES)))
    cells = [Cell(*what) for what in product(SIZES, BITS, SLOWNESS, STRATEGIES)]
    runs: dict[Cell, list[float]] = {cell: [] for cell in cells}
    with hosts(len(everybody), 1e9, MTU) as network, learners(network, everybody, [sys.executable, __file__]) as flock:
        told, raw = measure(flock, network)
        for cell in cells * PASSES:
            limit(network, cell.network)
            runs[cell].append(really(flock, cell))
            print(f"{cell}: {runs[cell][-1]:.3f} s, predicted {told.seconds_of(cell):.3f} s", flush=True)
    report([(cell, min(runs[cell]), told.seconds_of(cell)) for cell in cells], {**raw, "runs": list(runs.values())})


if __name__ == "__main__":
    main()
