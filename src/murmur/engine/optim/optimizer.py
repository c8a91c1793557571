"""Local optimizers as small descriptions, so that a command line can change them and a record can keep them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from murmur.engine.optim.natural_gradient import FisherConfig, Preconditioning

OptimizerFactory = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with momentum where wanted.

    Attributes:
        lr: learning rate; the schedule multiplies it.
        momentum: share of the previous step that is added to the new one; 0: none.
        weight_decay: factor of the weights that is added to their gradients; 0: none.
        nesterov: whether the momentum is Nesterov's.
    """

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
    """Adam; with weight decay in its decoupled form (AdamW).

    Attributes:
        lr: learning rate; the schedule multiplies it.
        beta1: decay of the running mean of gradients.
        beta2: decay of the running mean of squared gradients.
        weight_decay: share of the weights, times the learning rate, that a step takes off; 0: none.
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return torch.optim.AdamW(_trainable(model), lr=self.lr, betas=betas, weight_decay=self.weight_decay)


class PreconditionedSGD(torch.optim.SGD):
    """SGD whose gradients are natural ones if they are computed within `preconditioning`.

    The Fisher estimates are part of its state: a checkpoint holds them, and clearing the state restarts them.

    Attributes:
        preconditioning: Context to enter for the forward and the backward pass.
    """

    def __init__(self, parameters: list[nn.Parameter], fisher: FisherConfig, settings: dict[str, Any]) -> None:
        super().__init__(parameters, **settings)
        self.preconditioning = Preconditioning(parameters, lambda parameter: self.state[parameter], fisher)


@dataclass(frozen=True)
class NaturalGradientSGD:
    """SGD with natural gradients (`natural_gradient.fisher` has equations and source), and momentum where wanted.

    Every gradient is preconditioned by the learner that made it, with Fisher estimates of its own, before any mean
    over learners. The step is torch's: Kaldi's (1 - momentum) has to be put into `lr`.

    Attributes:
        lr: learning rate; the schedule multiplies it.
        momentum: share of the previous step that is added to the new one; 0: none.
        weight_decay: factor of the weights that is added to the preconditioned gradients; 0: none.
        fisher: estimates of the Fisher matrices that precondition the gradients.
    """

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    fisher: FisherConfig = field(default_factory=FisherConfig)

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        settings = {"lr": self.lr, "momentum": self.momentum, "weight_decay": self.weight_decay}
        return PreconditionedSGD(_trainable(model), self.fisher, settings)


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]
