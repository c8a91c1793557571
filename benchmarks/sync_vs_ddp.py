"""SyncSGD against DistributedDataParallel: seconds per step with two processes, same model and bucket size, in turn.

Both run in the same two processes, alternating; each repeat times a burst of steps after a barrier. Two learners with
one thread each.

    python benchmarks/sync_vs_ddp.py
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from measure import as_two_learners, bar, close, interleave, median_ratio
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.trainer import Trainer
from murmur.strategies import SyncSGD
from murmur.worlds.process.environment import Place
from murmur.worlds.process.torch_store import connect
from murmur.worlds.process.world import ProcessWorld
from overhead import Chunks

KIND = "bar"
STEPS, REPEATS = 5, 9
TIMES: list[float] = []


class Timed(SGD):
    def __call__(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        optimizer = super().__call__(model)
        optimizer.register_step_post_hook(lambda *_: TIMES.append(time.perf_counter()))
        return optimizer


def per_step() -> float:
    """Seconds per step of the slower learner, without the first step, which warms up."""
    mine = torch.tensor([(TIMES[-1] - TIMES[0]) / (len(TIMES) - 1)])
    dist.all_reduce(mine, dist.ReduceOp.MAX)
    return float(mine)


def ddp(task: Chunks, rank: int) -> float:
    TIMES.clear()
    torch.manual_seed(0)
    model = DistributedDataParallel(task.model())
    optimizer = Timed(0.1, momentum=0.9)(model)
    for step in range(STEPS + 1):
        loss = task.loss(model, task.minibatch(step * 2 + rank))
        optimizer.zero_grad()
        (loss.total / loss.samples).backward()
        optimizer.step()
        float(loss.total.detach())
    return per_step()


def ours(task: Chunks, place: Place, run: int) -> float:
    TIMES.clear()
    experiment = Experiment(
        task, SyncSGD(), Budget(minibatches=2 * (STEPS + 1)), Timed(0.1, momentum=0.9), scaling=Fixed()
    )
    own = replace(place, generation=run)
    Trainer(experiment, ProcessWorld(own, store=connect(own, 60))).fit()
    return per_step()


def learner(place: Place) -> None:
    torch.set_num_threads(1)
    store = connect(replace(place, generation=10_000), 60)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size, timeout=timedelta(seconds=60))
    task = Chunks()
    runs = iter(range(1, 1000))
    sides = {"SyncSGD": lambda: ours(task, place, next(runs)), "DDP": lambda: ddp(task, place.rank)}
    for side in sides.values():
        side()
    values = interleave(sides, REPEATS)
    if place.rank == 0:
        ratio = median_ratio(values, "SyncSGD", "DDP")
        close(
            "sync_vs_ddp", {"seconds_per_step": values, "ratio": ratio}, [bar("SyncSGD step / DDP step", ratio, 1.05)]
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    as_two_learners(learner)
