"""Local optimizers as small descriptions, so that a command line can change them and a record can keep them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

OptimizerFactory = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with momentum where wanted."""

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            _trainable(model),
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )


@dataclass(frozen=True)
class Adam:
    """Adam; with weight decay in its decoupled form (AdamW)."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return torch.optim.AdamW(_trainable(model), lr=self.lr, betas=betas, weight_decay=self.weight_decay)


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]
