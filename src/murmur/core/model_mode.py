"""Modes of a model while code of a task or a user runs on it: training, or evaluation without dropout.

Whoever calls such code sets the mode, so that the result does not depend on what ran before, and puts it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Context in which a model is in evaluation mode; afterwards every module of it has its own mode again."""
    with _kept_modes(model):
        yield model.eval()


@contextmanager
def in_training(model: nn.Module) -> Iterator[nn.Module]:
    """Context in which a model is in training mode, as by `into_training`; afterwards each module has its own mode."""
    with _kept_modes(model):
        yield into_training(model)


def into_training(model: nn.Module) -> nn.Module:
    """Put a model into training mode, and return it.

    Modules that its user put into evaluation mode inside a model that trains, such as frozen batch normalisation, stay
    so. A model that is in evaluation mode itself trains with all its modules.
    """
    return model if model.training else model.train()


@contextmanager
def _kept_modes(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        if model.training != modes[0][1]:
            model.train(modes[0][1])  # a class may do more than set the mode, such as merge weights
        for module, mode in modes:
            module.training = mode
