"""Loss of speed of two learners against two independent processes: one thread each, two cores, a real LSTM.

The ceiling is measured in the same run: the same two processes train at the same time without communication. All sides
run in turn in these processes, and DistributedDataParallel for comparison. Needs two idle cores: under other load, the
ceiling and the sides move together only roughly. LSTM 3x256 (6 MB of weights), minibatches of 64 chunks of 40 frames,
as in `overhead.py`; the smaller the minibatch, the greater the share of communication in a step.

    python benchmarks/scaling.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from measure import as_two_learners, bar, close, interleave
from murmur.core.learner import Strategy
from murmur.strategies import ADPSGD, KAVG, SyncSGD
from murmur.strategies.delay_by_one import DelayByOne
from murmur.worlds.process.environment import Place
from murmur.worlds.process.torch_store import connect
from overhead import Chunks
from paced import train

KIND = "bar"
K, STEPS, REPEATS = 8, 18, 4  # of the steps the middle 16 count: two averages of K-averaging are among them
STRATEGIES: dict[str, Strategy] = {
    f"KAVG({K})": KAVG(K),
    "ADPSGD": ADPSGD(),
    "DelayByOne": DelayByOne(),
    "SyncSGD": SyncSGD(),
}


@dataclass(frozen=True)
class Sides:
    """One of the two processes; every method returns minibatches per second of both."""

    place: Place
    task: Chunks

    def both(self, times: list[float]) -> float:
        """The sum over the learners of their own rates, from each one's second step to its last."""
        last = min(2 * K + 1, len(times) - 1)  # by claims, a slower learner gets fewer
        mine = torch.tensor([(last - 1) / (times[last] - times[1])], dtype=torch.float64)
        dist.all_reduce(mine)
        return float(mine)

    def ours(self, strategy: Strategy, run: int) -> float:
        dist.barrier()
        return self.both(train(replace(self.place, generation=run), self.task, strategy, 2 * STEPS).steps)

    def apart(self, run: int) -> float:
        alone = replace(self.place, rank=0, size=1, local_rank=0, generation=100 * run + self.place.rank + 1)
        dist.barrier()
        return self.both(train(alone, self.task, SyncSGD(), STEPS).steps)

    def ddp(self) -> float:
        torch.manual_seed(0)
        model = DistributedDataParallel(self.task.model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        times = []
        dist.barrier()
        for step in range(STEPS):
            loss = self.task.loss(model, self.task.minibatch(2 * step + self.place.rank))
            optimizer.zero_grad()
            (loss.total / loss.samples).backward()
            optimizer.step()
            float(loss.total.detach())
            times.append(time.monotonic())
        return self.both(times)


def learner(place: Place) -> None:
    torch.set_num_threads(1)
    store = connect(replace(place, generation=100_000), 60)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=2, timeout=timedelta(seconds=120))
    here, runs = Sides(place, Chunks()), iter(range(1, 1000))

    def side(strategy: Strategy) -> Callable[[], float]:
        return lambda: here.ours(strategy, next(runs))

    sides: dict[str, Callable[[], float]] = {"apart": lambda: here.apart(next(runs))}
    sides |= {name: side(strategy) for name, strategy in STRATEGIES.items()} | {"DDP": here.ddp}
    sides["apart"]()  # warms up
    values = interleave(sides, REPEATS)
    if place.rank == 0:
        ratios = {
            name: statistics.median(a / b for a, b in zip(values[name], values["apart"], strict=True))
            for name in values
        }
        print("of the ceiling: " + "  ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items()))
        bars = [
            bar(f"{name}: samples per second / two learners apart", ratios[name], 0.93, at_most=False)
            for name in STRATEGIES
        ]
        close("scaling", {"minibatches_per_second": values, "of_the_ceiling": ratios}, bars)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    as_two_learners(learner)
