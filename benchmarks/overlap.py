"""Overlap of communication with the gradient: seconds per step when moving a vector takes 0.8 of a gradient.

Two hosts with narrow cables (`namespaces.py`); all sides in turn in the same processes. The gradient is paced (it takes
its time without the processor); then a real LSTM is measured, one core per learner. Sides: the gradient alone, the mean
of a vector alone, gradient then allreduce, DistributedDataParallel with one bucket per layer, and ours.

    python benchmarks/overlap.py      (as root)
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from measure import bar, close, interleave
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.engine.task import Task
from murmur.strategies import ADPSGD, SuperLearners, SyncSGD
from murmur.strategies.delay_by_one import DelayByOne
from murmur.worlds.process.environment import Place, place_of
from murmur.worlds.process.torch_store import connect
from murmur.worlds.process.world import ProcessWorld
from namespaces import HostLearners, Network, hosts, learners, obey, refusal
from overhead import Chunks, Lstm
from paced import Paced, train

KIND = "bar"
SECONDS, NUMEL, SHARE = 0.25, 50_000, 0.8
STEPS, REPEATS, LSTM_REPEATS = 12, 4, 3
ALL_RANKS, ACROSS, INSIDE = [0, 1, 2, 3], [0, 2], [0, 1]  # ranks 0 and 1 live on one host, 2 and 3 on the other
STRATEGIES: dict[str, Strategy] = {
    "allreduce": SyncSGD(),
    "DelayByOne": DelayByOne(),
    "ADPSGD": ADPSGD(),
    "SuperLearners": SuperLearners(ADPSGD(), 2),
}


@dataclass(frozen=True)
class Small(Chunks):
    """A task with much computation for few weights, so that moving them costs the processor little."""

    chunks: int = 128

    def model(self) -> nn.Module:
        return Lstm(cells=128)


TASKS: dict[str, Task] = {"paced": Paced(SECONDS, NUMEL), "LSTM": Small()}


def bits_per_second(numel: int, seconds: float) -> float:
    """Bandwidth at which a float32 vector takes SHARE of a gradient; 4 % are headers."""
    return numel * 32 * 1.04 / (SHARE * seconds)


def trained(place: Place, task: str, strategy: str) -> tuple[float, float, float]:
    """Wall seconds and processor seconds of a step, and the mean staleness."""
    ran = train(place, TASKS[task], STRATEGIES[strategy], STEPS * place.size)
    return ran.seconds_per_step, ran.cpu_seconds_per_step, statistics.fmean(ran.staleness)


def alone(place: Place, task: str) -> tuple[float, float, float]:
    """Gradient and step without communication, by all chosen learners at the same time."""
    own = Place(0, 1, 0, place.host, place.port, generation=place.generation * 1000 + place.rank)
    ran = train(own, TASKS[task], SyncSGD(), STEPS)
    return ran.seconds_per_step, ran.cpu_seconds_per_step, 0.0


def exchange(place: Place, task: str) -> tuple[float, float, float]:
    """Seconds of a mean of the task's vector, without other work."""
    x = torch.zeros(sum(p.numel() for p in TASKS[task].model().parameters()))
    times: list[float] = []

    async def program(seat: Seat) -> None:
        for _ in range(7):
            start = time.monotonic()
            await seat.group.mean(x)
            times.append(time.monotonic() - start)

    ProcessWorld(place, timeout_seconds=60).run(program)
    return statistics.median(times[1:]), 0.0, 0.0


def ddp(place: Place, task: str) -> tuple[float, float, float]:
    """The plain loop with DistributedDataParallel."""
    store = connect(place, 60)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size, timeout=timedelta(seconds=60))
    problem = TASKS[task]
    torch.manual_seed(0)
    model = problem.model()
    largest = max(p.numel() for p in model.parameters()) * 4 / 2**20
    averager = DistributedDataParallel(model, bucket_cap_mb=largest)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    times = []
    for step in range(STEPS):
        loss = problem.loss(averager, problem.minibatch(step * place.size + place.rank))
        optimizer.zero_grad()
        (loss.total / loss.samples).backward()
        optimizer.step()
        float(loss.total.detach())
        times.append(time.monotonic())
    dist.barrier()
    dist.destroy_process_group()
    return (times[-1] - times[2]) / (len(times) - 3), 0.0, 0.0


def sides(running: HostLearners, task: str, cpu: dict[str, list[float]]) -> Mapping[str, Callable[[], float]]:
    """The sides measured in turn: name -> seconds of a step (or of a mean), averaged over its learners."""

    def side(name: str, what: str, ranks: Sequence[int], **how: Any) -> Callable[[], float]:
        def measure() -> float:
            results = running.do(what, ranks, task=task, **how)
            cpu.setdefault(name, []).append(max(r[1] for r in results))
            return statistics.fmean(r[0] for r in results)

        return measure

    def ours(name: str, ranks: Sequence[int]) -> Callable[[], float]:
        return side(name, "train", ranks, strategy=name)

    common = {
        "gradient": side("gradient", "alone", ACROSS),
        "exchange": side("exchange", "exchange", ACROSS),
        "DDP": side("DDP", "ddp", ACROSS),
        "DelayByOne": ours("DelayByOne", ACROSS),
        "ADPSGD": ours("ADPSGD", ACROSS),
    }
    if task == "LSTM":
        return common
    in_node = side("in node", "train", INSIDE, strategy="allreduce")
    hidden = ours("SuperLearners", ALL_RANKS)
    return {**common, "allreduce": ours("allreduce", ACROSS), "in node": in_node, "SuperLearners": hidden}


def against_floor(values: Mapping[str, list[float]], name: str, compute: str = "gradient") -> float:
    """Median over the repeats of a step / max(compute, exchange)."""
    rows = zip(values[name], values[compute], values["exchange"], strict=True)
    return statistics.median(step / max(gradient, exchange) for step, gradient, exchange in rows)


def lstm(running: HostLearners, network: Network) -> dict[str, list[float]]:
    """The same with a real gradient: its seconds determine the bandwidth of the cables."""
    seconds = statistics.fmean(r[0] for r in running.do("alone", ACROSS, task="LSTM"))
    numel = sum(p.numel() for p in TASKS["LSTM"].model().parameters())
    for host in (0, 1):
        network.limit(host, bits_per_second(numel, seconds))
    print(f"LSTM: {seconds:.3f} s a gradient, {numel} elements")
    return interleave(sides(running, "LSTM", {}), LSTM_REPEATS)


def main() -> None:
    torch.set_num_threads(1)
    place = place_of()
    if place is not None:
        obey(place, {"train": trained, "alone": alone, "exchange": exchange, "ddp": ddp})
        return
    reason = refusal()
    if reason is not None:
        print(f"overlap cannot run: {reason}")
        print(json.dumps({"benchmark": "overlap", "figures": {}, "bars": [], "cannot_run": reason}))
        return
    cpu: dict[str, list[float]] = {}
    words = [sys.executable, __file__]
    with hosts(2, bits_per_second(NUMEL, SECONDS)) as network, learners(network, [0, 0, 1, 1], words) as running:
        paced = interleave(sides(running, "paced", cpu), REPEATS)
        real = lstm(running, network)
    report(paced, real, cpu)


def report(paced: Mapping[str, list[float]], real: Mapping[str, list[float]], cpu: Mapping[str, list[float]]) -> None:
    busy = {name: SECONDS / max(values) for name, values in cpu.items() if max(values) > 0}
    print("seconds of the gradient / CPU seconds of a step: " + "  ".join(f"{n} {b:.0f}" for n, b in busy.items()))
    ratios = {"paced": {n: against_floor(paced, n) for n in paced}, "LSTM": {n: against_floor(real, n) for n in real}}
    ratios["paced"]["SuperLearners"] = against_floor(paced, "SuperLearners", "in node")
    for kind, found in ratios.items():
        print(f"{kind}, step / max(compute, exchange): " + "  ".join(f"{n} {r:.3f}" for n, r in found.items()))
    floor = "max(compute, exchange)"
    bars = [
        *(bar(f"{name} step / {floor}", ratios["paced"][name], 1.15) for name in ("DelayByOne", "ADPSGD")),
        bar(f"SuperLearners(ADPSGD, 2) on 2 x 2 step / {floor}", ratios["paced"]["SuperLearners"], 1.2),
        *(bar(f"LSTM: {name} step / {floor}", ratios["LSTM"][name], 1.15) for name in ("DelayByOne", "ADPSGD")),
    ]
    figures = {"paced_seconds": paced, "lstm_seconds": real, "ratios": ratios, "compute_to_cpu": busy}
    close("overlap", figures, bars)


if __name__ == "__main__":
    main()
