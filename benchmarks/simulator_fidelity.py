"""Accuracy of the virtual cluster's wall times: 2 and 4 real learners, three networks, four strategies.

Every cell (learners, bandwidth, with or without a straggler, strategy, length of the vector) trains for real on hosts
made of network namespaces, and once in virtual time. The virtual cluster's parameters are measured beforehand on two of
the hosts, for each vector: seconds of a step alone, of a small message, of a mean of two vectors and of adding them.
Nothing is fitted to a cell.
The gradient is paced (`paced.py`): it takes its time without the processor. Wall time counts from the moment at which
all learners have taken their first few steps, really and virtually, which excludes connecting and first use. Every
cell runs twice, in two passes over all of them; one during which others used the processor is run again while time
allows, and the fastest run counts, since other load can only slow a run down. Needs root, `ip` and `tc`.

    python benchmarks/simulator_fidelity.py      (as root)
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor

from measure import bar, close
from murmur.core.facts import Facts
from murmur.core.learner import Learner, Strategy
from murmur.core.world import Seat
from murmur.simulation.planner.timing import Idle, NoWeights
from murmur.strategies import ADPSGD, KAVG, SyncSGD
from murmur.strategies.delay_by_one import DelayByOne
from murmur.worlds.process.environment import Place, place_of
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Link
from murmur.worlds.virtual.world import VirtualWorld
from namespaces import HostLearners, Network, Pair, exchanges, hosts, learners, obey, refusal
from paced import Others, Paced, train

KIND = "bar"
# Below 1 MiB the gradient is one bucket, whose mean begins when the backward pass is over. Of 48 MB the larger part is
# summed behind the backward pass.
K = 4
VECTORS = {"1 MB": (0.12, 240_000, 2), "48 MB": (1.0, 12_000_000, 96)}  # seconds of a gradient, elements, tensors
LARGE_SIZE, LARGE_NETWORKS = 2, ("400 Mb/s", "1 Gb/s")
BITS = {"100 Mb/s": 100e6, "400 Mb/s": 400e6, "1 Gb/s": 1e9}
MTU = 9000  # with packets of 1500 bytes the emulated network costs two cores more time than 1 Gb/s does
SIZES, PAIR, SLOW, SLOWNESS = (2, 4), [0, 1], 1, (1.0, 2.0)
STRATEGIES: dict[
    str, tuple[Strategy, int, int]
] = {  # and steps of a learner: those before the clock starts, those on it
    "SyncSGD": (SyncSGD(), 1, 8),
    f"KAVG({K})": (KAVG(K), K + 1, 2 * K),
    "DelayByOne": (DelayByOne(), 2, 10),
    "ADPSGD": (ADPSGD(), 2, 15),
}
ALONE_STEPS, PASSES, ENOUGH_SECONDS = 12, 2, 600
OTHERS = 0.1  # cores that others may use while a cell runs
WITHIN, TIE = 0.10, 0.03


@dataclass(frozen=True)
class Setting:
    """One run: number of learners, network, slowness of learner 1, strategy, length of the vector."""

    learners: int
    network: str
    slowness: float
    strategy: str
    vector: str = "1 MB"

    @property
    def minibatches(self) -> int:
        """Minibatches of the whole run."""
        return sum(STRATEGIES[self.strategy][1:]) * self.learners

    @property
    def timed(self) -> int:
        """Minibatches while the clock runs."""
        return STRATEGIES[self.strategy][2] * self.learners

    def seconds(self, steps: Iterable[float]) -> float:
        """Wall time until every learner has taken its steps."""
        at = sorted(steps)
        return at[-1] - at[self.minibatches - self.timed - 1]

    def __str__(self) -> str:
        slow = "" if self.slowness == 1 else f", one {self.slowness:g}x slower"
        return f"{self.learners} learners, {self.network}{slow}, {self.strategy}, {self.vector}"


def train_cell(place: Place, strategy: str, minibatches: int, slowness: float, vector: str) -> list[float]:
    """A learner's side of a cell: the times of its steps, on the machine's one clock."""
    task = Paced(*VECTORS[vector], slowness if place.rank == SLOW else 1.0)
    return train(place, task, STRATEGIES[strategy][0], minibatches).steps


def alone(place: Place, slowness: float, vector: str) -> tuple[float, float]:
    """Wall seconds and processor seconds of a step of a single learner."""
    own = Place(0, 1, 0, place.host, place.port, generation=place.generation * 1000 + place.rank)
    ran = train(own, Paced(*VECTORS[vector], slowness), SyncSGD(), ALONE_STEPS)
    return ran.seconds_per_step, ran.cpu_seconds_per_step


class Stamped(Idle):
    """Source of gradients that cost no time here; records the times of its steps."""

    def __init__(self, seat: Seat, total: int) -> None:
        super().__init__(seat, total)
        self.seat, self.at = seat, list[float]()

    def apply(self, g: Tensor, present: list[bool], staleness: int) -> None:
        self.at.append(self.seat.now)


async def virtually(cell: Setting, seat: Seat) -> Stamped:
    """A learner's side of a cell in virtual time."""
    source = Stamped(seat, cell.minibatches)
    strategy = STRATEGIES[cell.strategy][0]
    await strategy(Learner(seat, NoWeights(), source, Facts.of(strategy).lock_step))
    return source


@dataclass(frozen=True)
class Told:
    """Parameters of the virtual cluster.

    Attributes:
        seconds: seconds of a step.
        factors: measured factors on the time of a step, by nominal slowness.
        links: links by the name of the network.
        reduce_bytes_per_second: speed of adding vectors.
        message_bytes: length of a vector.
    """

    seconds: float
    factors: Mapping[float, float]
    links: Mapping[str, Link]
    reduce_bytes_per_second: float
    message_bytes: float

    def seconds_of(self, cell: Setting) -> float:
        """The virtual cluster's prediction."""
        cluster = Cluster(
            learners=cell.learners,
            compute=ConstantSeconds(self.seconds, {SLOW: self.factors[cell.slowness]}),
            link=self.links[cell.network],
            message_bytes=self.message_bytes,
            reduce_bytes_per_second=self.reduce_bytes_per_second,
        )
        sources = VirtualWorld(cluster).run(partial(virtually, cell))
        return cell.seconds(at for source in sources for at in source.at)


def measure(running: HostLearners, network: Network, vector: str) -> tuple[Told, dict[str, Any]]:
    """Measure two learners and the networks of a vector, before any cell."""
    nominal, numel, _ = VECTORS[vector]
    small = vector == Setting.vector
    steps: dict[float, float] = {}
    cpu = []
    for slowness in SLOWNESS if small else SLOWNESS[:1]:
        found = running.do("alone", PAIR, slowness=slowness, vector=vector)
        steps[slowness] = statistics.fmean(seconds for seconds, _ in found)
        cpu.append(max(used for _, used in found) / slowness)
    pairs = {}
    for name in BITS if small else LARGE_NETWORKS:
        for host in PAIR:
            network.limit(host, BITS[name])
        pairs[name] = Pair(**running.do("exchanges", PAIR, numel=numel)[0])
        print(f"{name}, {vector}: {pairs[name]}, {pairs[name].link(4 * numel)}", flush=True)
    adding = statistics.median(pair.adding for pair in pairs.values())
    factors = {slowness: seconds / steps[1.0] for slowness, seconds in steps.items()}
    links = {name: pair.link(4 * numel) for name, pair in pairs.items()}
    told = Told(steps[1.0], factors, links, 4 * numel / adding, 4.0 * numel)
    print(f"a step {told.seconds:.4f} s, slower ones {factors}, sleep / CPU of a step {nominal / max(cpu):.1f}")
    raw = {
        "pair": {n: asdict(p) for n, p in pairs.items()},
        "step_seconds": steps[1.0],
        "factors": list(factors.items()),
    }
    return told, {**raw, "compute_to_cpu": nominal / max(cpu)}


def really(running: HostLearners, cell: Setting) -> float:
    """Wall seconds of a cell."""
    how = {"strategy": cell.strategy, "minibatches": cell.minibatches, "slowness": cell.slowness}
    how["vector"] = cell.vector
    return cell.seconds(at for steps in running.do("train", range(cell.learners), **how) for at in steps)


@dataclass(frozen=True)
class Runs:
    """Wall seconds of each cell's runs, separately for an idle machine and one used by others."""

    clean: Mapping[Setting, list[float]]
    other: Mapping[Setting, list[float]]

    @property
    def disturbed(self) -> list[Setting]:
        """Cells without an undisturbed run."""
        return [cell for cell, found in self.clean.items() if not found]

    def seconds(self, cell: Setting) -> float:
        return min(self.clean[cell] or self.other[cell])

    def perform(self, running: HostLearners, network: Network, cell: Setting) -> None:
        for host in range(max(SIZES)):
            network.limit(host, BITS[cell.network])
        others = Others([process.pid for process in running.processes])
        seconds = really(running, cell)
        busy = others.cores
        (self.clean if busy < OTHERS else self.other)[cell].append(seconds)
        print(f"{cell}: {seconds:.3f} s, others on {busy:.2f} cores", flush=True)


def wrong_pairs(cells: Sequence[tuple[Setting, float, float]]) -> tuple[list[str], int]:
    """Pairs of strategies of one setting that the virtual cluster ranks wrongly, and the number of compared pairs.

    Pairs whose real seconds per minibatch differ by less than TIE are not compared.
    """
    wrong, apart = [], 0
    for (a, real_a, virtual_a), (b, real_b, virtual_b) in combinations(cells, 2):
        setting = [(c.learners, c.network, c.slowness, c.vector) for c in (a, b)]
        if setting[0] != setting[1]:
            continue
        real = (real_a / a.timed) / (real_b / b.timed)
        virtual = (virtual_a / a.timed) / (virtual_b / b.timed)
        if max(real, 1 / real) > 1 + TIE:
            apart += 1
            if virtual == 1 or (real > 1) != (virtual > 1):
                wrong.append(f"{a} against {b.strategy}: really {real:.3f}, virtually {virtual:.3f}")
    return wrong, apart


def report(found: Sequence[tuple[Setting, float, float]], told: Mapping[str, Any]) -> None:
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
    ranks = list(range(max(SIZES)))
    cells = [Setting(*what) for what in product(SIZES, BITS, SLOWNESS, STRATEGIES)]
    cells += [
        Setting(LARGE_SIZE, network, 1.0, strategy, "48 MB") for network in LARGE_NETWORKS for strategy in STRATEGIES
    ]
    began = time.monotonic()
    runs = Runs({cell: [] for cell in cells}, {cell: [] for cell in cells})
    with (
        hosts(len(ranks), 1e9, MTU) as network,
        learners(network, ranks, [sys.executable, __file__]) as running,
    ):
        measured = {vector: measure(running, network, vector) for vector in VECTORS}
        for cell in cells * PASSES:
            runs.perform(running, network, cell)
        while runs.disturbed and time.monotonic() - began < ENOUGH_SECONDS:
            runs.perform(
                running, network, min(runs.disturbed, key=lambda cell: len(runs.clean[cell] + runs.other[cell]))
            )
    for cell in runs.disturbed:
        print(f"{cell}: others used the processor during every run")
    told, raw = {v: t for v, (t, _) in measured.items()}, {v: r for v, (_, r) in measured.items()}
    small = raw[Setting.vector] | {"large": raw["48 MB"]}
    small |= {
        "runs": [[*runs.clean[cell], *runs.other[cell]] for cell in cells],
        "disturbed_cells": len(runs.disturbed),
    }
    report([(cell, runs.seconds(cell), told[cell.vector].seconds_of(cell)) for cell in cells], small)


if __name__ == "__main__":
    main()
