"""Programs of sharded learners: two learners of two processes, and the same loop of two whole learners.

    python -m tests.support.sharded_loops FOLDER PROGRAM      one of four processes, with RANK in its environment
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import murmur
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import ADPSGD, BMUF, KAVG, DelayByOne, DiLoCo, GossipPGA, SlowMo, SyncSGD

LEARNERS, SHARDS, ROWS, STEPS = 2, 2, 8, 11
EQUAL: dict[str, Strategy] = {
    "KAVG": KAVG(4),
    "KAVG with moments": KAVG(4, moments="averaged"),
    "DiLoCo": DiLoCo(3),
    "BMUF": BMUF(3, moments="at_outer"),
    "SlowMo": SlowMo(4),
    "SyncSGD": SyncSGD(),
    "DelayByOne": DelayByOne(),
    "GossipPGA": GossipPGA(3),
}


class Uneven(nn.Module):
    """Model with first dimensions that two processes cannot halve, one of length 1, two types, and a frozen part."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 5)
        self.frozen = nn.Linear(5, 5)
        self.frozen.requires_grad_(False)
        self.middle = nn.Linear(5, 3).double()
        self.outer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.middle(torch.tanh(self.frozen(self.inner(x))).double())
        return self.outer(torch.tanh(h).float())


def uneven(seed: int) -> Uneven:
    torch.manual_seed(seed)
    return Uneven()


def rows(n: int, learner: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(100 * n + learner)
    return torch.randn(ROWS, 6, generator=draw), torch.randn(ROWS, 1, generator=draw)


def loss_of(model: nn.Module, n: int, learner: int, shard: int = 0, shards: int = 1) -> Tensor:
    """Return the loss of a minibatch, or of the part of it that a process of the learner has."""
    x, y = (part[shard::shards] for part in rows(n, learner))
    return (model(x) - y).square().mean()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.05, eps=1e-4)


def trained(
    strategy: Strategy,
    model: nn.Module,
    seat: Seat | None = None,
    mesh: DeviceMesh | None = None,
    steps: int = STEPS,
) -> None:
    with murmur.join(strategy, model, adam(model), seat=seat, mesh=mesh) as me:
        for n in range(steps):
            if n == 5:
                with me.consensus() as mean:
                    mean(rows(n, 0)[0])
            loss = loss_of(model, n, me.rank, me.shard, me.shards)
            loss.backward()
            me.step(samples=(ROWS + me.rank) / me.shards, loss=loss, clip=0.8 if n % 2 else None)


def meshes() -> tuple[DeviceMesh, DeviceMesh]:
    both = init_device_mesh("cpu", (LEARNERS, SHARDS), mesh_dim_names=("learner", "shard"))
    return both["learner"], both["shard"]


def sharded(model: Uneven, mesh: DeviceMesh) -> Uneven:
    for part in (model.middle, model):
        fully_shard(part, mesh=mesh)
    return model


def whole(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a sharded model, as a whole."""
    for part in model.modules():
        if hasattr(part, "reshard"):
            part.reshard()
    named = model.state_dict().items()
    return {name: x.full_tensor() if hasattr(x, "full_tensor") else x.clone() for name, x in named}


def equal() -> dict[str, object]:
    """Train by each of the strategies that have one result."""
    learners, shards = meshes()
    found: dict[str, object] = {}
    for name, strategy in EQUAL.items():
        model = sharded(uneven(dist.get_rank(learners.get_group())), shards)
        trained(strategy, model, mesh=learners)
        found[name] = whole(model)
    return found


PROGRAMS: dict[str, Callable[[], dict[str, object]]] = {"equal": equal}


def main() -> None:
    folder, program = Path(sys.argv[1]), sys.argv[2]
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=LEARNERS * SHARDS)
    found = PROGRAMS[program]()
    torch.save(found, folder / f"found-{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
