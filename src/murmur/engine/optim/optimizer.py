"""Local optimizers as small values, which a command line can change and a record can store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from murmur.accelerator.device import is_accelerator
from murmur.core.torch_private import without_compiler
from murmur.engine.optim.natural_gradient import FisherConfig, Preconditioning

OptimizerFactory = Callable[[nn.Module], torch.optim.Optimizer]


class WithoutCompiler(torch.optim.Optimizer):
    """Methods of PyTorch's optimizers that do not import `torch._dynamo`.

    That import takes longer than 1.5 s of processor time in every learner process; only compiled steps need it.
    """

    add_param_group = without_compiler(torch.optim.Optimizer.add_param_group)
    load_state_dict = without_compiler(torch.optim.Optimizer.load_state_dict)
    state_dict = without_compiler(torch.optim.Optimizer.state_dict)
    zero_grad = without_compiler(torch.optim.Optimizer.zero_grad)


class PlainSGD(WithoutCompiler, torch.optim.SGD):
    """PyTorch's SGD, to the bit."""

    step = torch.no_grad()(without_compiler(torch.optim.SGD.step))


class PlainAdamW(WithoutCompiler, torch.optim.AdamW):
    """PyTorch's AdamW, to the bit."""

    step = torch.no_grad()(without_compiler(torch.optim.AdamW.step))


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, optionally with momentum.

    Attributes:
        lr: Learning rate, before the factor of the schedule.
        momentum: Share of the previous step added to the new one; 0: none.
        weight_decay: Factor of the weights added to their gradients, those of all trainable tensors, with biases and
            normalisations; 0: none.
        nesterov: True for Nesterov's momentum.
        keep_rate: True: steps are multiplied by 1 - momentum, as in Kaldi, so that momentum keeps the effective rate.
    """

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    keep_rate: bool = False

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        return PlainSGD(
            _trainable(model),
            lr=self.lr * (1 - self.momentum if self.keep_rate else 1.0),
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )


@dataclass(frozen=True)
class Adam:
    """Adam; with weight decay in its decoupled form (AdamW).

    Attributes:
        lr: Learning rate, before the factor of the schedule.
        beta1: Decay of the running mean of gradients.
        beta2: Decay of the running mean of squared gradients.
        weight_decay: Factor; a step subtracts learning rate * factor * weights from all trainable tensors, with biases
            and normalisations; 0: none.
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        weights = _trainable(model)
        fused = all(is_accelerator(w.device) for w in weights) or None  # one kernel a step; None: as PyTorch chooses
        betas = (self.beta1, self.beta2)
        return PlainAdamW(weights, lr=self.lr, betas=betas, weight_decay=self.weight_decay, fused=fused)


class PreconditionedSGD(PlainSGD):
    """SGD on natural gradients, which must be computed within `preconditioning`.

    The Fisher estimates are part of its state: a checkpoint holds them, and clearing the state restarts them.

    Attributes:
        preconditioning: Context to enter for the forward and the backward pass.
    """

    def __init__(self, parameters: list[nn.Parameter], fisher: FisherConfig, settings: dict[str, Any]) -> None:
        super().__init__(parameters, **settings)
        self.preconditioning = Preconditioning(parameters, lambda parameter: self.state[parameter], fisher)


@dataclass(frozen=True)
class NaturalGradientSGD:
    """SGD with natural gradients (equations and source: `natural_gradient.fisher`), optionally with momentum.

    Each learner preconditions its gradient with its own Fisher estimates, before any mean over learners.

    Attributes:
        lr: Learning rate, before the factor of the schedule.
        momentum: Share of the previous step added to the new one; 0: none.
        weight_decay: Factor of the weights added to the preconditioned gradients, those of all trainable tensors, with
            biases and normalisations; 0: none.
        fisher: Settings of the estimates of the Fisher matrices.
        keep_rate: True: steps are multiplied by 1 - momentum, as in Kaldi, so that momentum keeps the effective rate.
    """

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    fisher: FisherConfig = field(default_factory=FisherConfig)
    keep_rate: bool = False

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        lr = self.lr * (1 - self.momentum if self.keep_rate else 1.0)
        settings = {"lr": lr, "momentum": self.momentum, "weight_decay": self.weight_decay}
        return PreconditionedSGD(_trainable(model), self.fisher, settings)


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]
