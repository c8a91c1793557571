"""Learners that are groups of processes, whose model is sharded by FSDP2: `# <-` marks what the groups need.

    torchrun --nproc-per-node 4 examples/sharded_learners.py           two learners of two processes
    torchrun --nproc-per-node 4 examples/sharded_learners.py 4         one learner of four

Each process holds its shards of the model, and averages them with the process of the other learner that holds the same
ones. Takes seconds on a CPU. Learns a spiral of two arms; about 99 % of the points are classified well in the end.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import murmur
from murmur.strategies import KAVG

EPOCHS, BATCH = 6, 25


def spiral(points: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points (N, 2) of two arms, and the arm of each."""
    draw = torch.Generator().manual_seed(seed)
    arm = torch.randint(0, 2, (points,), generator=draw)
    turn = torch.rand(points, generator=draw) * 6 + 0.5
    angle = turn + arm * torch.pi
    noise = 0.1 * torch.randn(points, 2, generator=draw)
    return torch.stack([turn * angle.cos(), turn * angle.sin()], 1) / 3 + noise, arm


def main() -> None:
    shards = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    learners = int(os.environ["WORLD_SIZE"]) // shards
    mesh = init_device_mesh("cpu", (learners, shards), mesh_dim_names=("learner", "shard"))  # <- "cuda" for GPUs
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    for layer in (model[2], model):
        fully_shard(layer, mesh=mesh["shard"])  # <- over the processes of one learner
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
    x, arm = spiral(2000, seed=1)
    with murmur.join(KAVG(K=8), model, optimizer, mesh=mesh["learner"]) as me:  # <- each with those of its shard
        sampler = me.sampler(x)  # a part for each process
        for _ in range(EPOCHS):
            for rows in torch.tensor(list(sampler)).split(BATCH):
                loss = nn.functional.cross_entropy(model(x[rows]), arm[rows])
                loss.backward()
                me.step(samples=len(rows), loss=loss, clip=1.0)  # the norm of the whole gradient
    x, arm = spiral(1000, seed=2)
    right = float((model(x).argmax(1) == arm).float().mean())  # on all processes: a forward pass gathers the shards
    if me.rank == me.shard == 0:
        print(f"{me.size} learners of {me.shards} processes, {right:.1%} of unseen points right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
