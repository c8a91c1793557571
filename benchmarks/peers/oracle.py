"""The published K-averaging cross-check: two learners, an MLP, plain SGD, 160 steps, K = 8. Independent of murmur.

Learner i draws x ~ N(0, 1) of shape (32, 64) from its own generator with seed 100 + i; labels are argmax of x W with W
from seed 7. The sum of all parameters in float64 is compared.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

LEARNERS, STEPS, K, RATE = 2, 160, 8, 0.05


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def batches(learner: int) -> Iterator[tuple[Tensor, Tensor]]:
    truth = torch.randn(64, 10, generator=torch.Generator().manual_seed(7))
    draw = torch.Generator().manual_seed(100 + learner)
    for _ in range(STEPS):
        x = torch.randn(32, 64, generator=draw)
        yield x, (x @ truth).argmax(1)


def checksum(net: nn.Module) -> float:
    return float(sum(p.detach().double().sum() for p in net.parameters()))
