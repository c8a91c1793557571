"""Learners as workers of Ray Train, which starts all of them again from the newest checkpoint when one is lost.

    pip install "ray[train]"
    python examples/ray/train.py

Takes a minute on a CPU. Learns eight weights, and prints their largest error.
"""

from __future__ import annotations

import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import ray.train
import ray.util
import torch
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchTrainer
from torch import nn

import murmur
from murmur.strategies import KAVG
from murmur.worlds.process.environment import Place
from murmur.worlds.process.secret import draw

EPOCHS = 10


def place() -> Place:
    """Return this worker's place; worker 0 chooses the meeting point and draws the secret of the run."""
    context = ray.train.get_context()
    with socket.create_server(("", 0)) as free:  # MASTER_PORT is torch's own
        mine = ray.util.get_node_ip_address(), free.getsockname()[1], draw()
    host, port, secret = broadcast_from_rank_zero(mine)
    rank, size, local = context.get_world_rank(), context.get_world_size(), context.get_local_rank()
    local_size = context.get_local_world_size()
    return Place(rank, size, local, host, port, local_size=local_size, store="learner 0", secret=secret)


def loop() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    with murmur.join(KAVG(8), model, optimizer, seat=place()) as me:
        first = resume(me)
        x = torch.randn(512, 8, generator=torch.Generator().manual_seed(1))[me.rank :: me.size]
        for epoch in range(first, EPOCHS):
            for rows in torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch)).split(8):
                (model(x[rows]).squeeze(1) - x[rows].sum(1)).square().mean().backward()
                me.step(samples=len(rows))
            save(me, epoch + 1)
    if me.rank == 0:
        print(f"{me.size} learners: largest error of a weight {float((model.weight.detach() - 1).abs().max()):.5f}")


def save(me: murmur.Joined, epochs: int) -> None:
    """Save the state of this learner; Ray puts the files of all into one checkpoint."""
    with TemporaryDirectory() as folder:
        torch.save({"run": me.state_dict(), "epochs": epochs}, Path(folder) / f"learner-{me.rank}.pt")
        ray.train.report({"epochs": epochs}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def resume(me: murmur.Joined) -> int:
    """Go on from the newest checkpoint, after a restart; return the number of completed epochs."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        saved = torch.load(Path(folder) / f"learner-{me.rank}.pt", weights_only=True)
    me.load_state_dict(saved["run"])
    return int(saved["epochs"])


def main() -> None:
    failures = ray.train.FailureConfig(max_failures=3)
    scaling = ray.train.ScalingConfig(num_workers=2)
    TorchTrainer(loop, scaling_config=scaling, run_config=ray.train.RunConfig(failure_config=failures)).fit()


if __name__ == "__main__":
    main()
