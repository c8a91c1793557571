"""A training loop of your own with any strategy: `# <-` marks the differences from plain PyTorch.

    python examples/my_own_loop.py                                 one learner: the plain loop
    murmur launch --learners 2 examples/my_own_loop.py             two on this host
    torchrun --nproc-per-node 2 examples/my_own_loop.py            the same by torchrun; srun and mpirun work too
    murmur simulate examples/my_own_loop.py --learners 16          sixteen on a virtual cluster

Takes seconds on a CPU. Learns a spiral of two arms; about 99 % of the points are classified well in the end.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import murmur
from murmur.strategies import KAVG

EPOCHS, BATCH = 20, 32


def spiral(points: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points (N, 2) of two arms, and the arm of each."""
    draw = torch.Generator().manual_seed(seed)
    arm = torch.randint(0, 2, (points,), generator=draw)
    turn = torch.rand(points, generator=draw) * 6 + 0.5
    angle = turn + arm * torch.pi
    noise = 0.1 * torch.randn(points, 2, generator=draw)
    return torch.stack([turn * angle.cos(), turn * angle.sin()], 1) / 3 + noise, arm


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, arm = spiral(2000, seed=1)
    steps = EPOCHS * -(-len(x) // BATCH)
    plan = murmur.Plan(total_steps=steps, scaling=murmur.scaling(KAVG(K=8)))  # <- the rate follows their number
    with murmur.join(KAVG(K=8), model, optimizer, plan) as me:  # <- after the block the model is the mean of all
        x, arm = x[me.rank :: me.size], arm[me.rank :: me.size]  # <- every learner has its own part of the data
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(x)).split(BATCH):
                nn.functional.cross_entropy(model(x[rows]), arm[rows]).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                me.step(samples=len(rows))  # <- in place of optimizer.step() and zero_grad()
    model.eval()
    x, arm = spiral(1000, seed=2)
    right = float((model(x).argmax(1) == arm).float().mean())
    if me.rank == 0:
        print(f"{me.size} learners, {right:.1%} of unseen points right")


if __name__ == "__main__":
    main()
