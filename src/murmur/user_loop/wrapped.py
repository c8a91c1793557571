"""Models and optimizers in wrappers of other libraries: a wrapper is taken off, or refused by its name.

Wrappers are known by the names of their classes, so that no other library is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from murmur.core.torch_private import compiled_from
from murmur.user_loop.optimizer_list import OptimizerList

AVERAGES = "averages gradients of processes itself"
SHARDS = "shards the model over processes"
JOIN_INNER = "join the model inside it, and call that in the loop"
JOIN_BEFORE = "join the model before it is wrapped"
SHARDED = ("FSDPModule", "DTensor")  # allowed in sharded learners
JOIN_SHARDED = 'or make each learner a group of processes, join(..., mesh=mesh["learner"])'
MODULES: Mapping[str, str] = {
    "DistributedDataParallel": f"{AVERAGES}: {JOIN_INNER} (its attribute module)",
    "FullyShardedDataParallel": f"{SHARDS}: {JOIN_BEFORE}",
    "FSDPModule": f"{SHARDS}: {JOIN_BEFORE} (fully_shard), {JOIN_SHARDED}",
    "DeepSpeedEngine": f"{AVERAGES} and has an optimizer of its own: {JOIN_BEFORE}",
}
TRANSPARENT = ("DataParallel", "_FabricModule")  # the inner model is their attribute `module`
JOIN_PLAIN = "join the plain optimizer, made from all trainable parameters"
OPTIMIZERS: Mapping[str, str] = {
    "ZeroRedundancyOptimizer": f"shards its state over processes: {JOIN_PLAIN}",
    "PostLocalSGDOptimizer": f"averages weights of processes itself: {JOIN_PLAIN}",
    "DistributedOptimizer": f"exchanges gradients of processes itself: {JOIN_PLAIN}",
    "_DistributedOptimizer": f"exchanges gradients of processes itself: {JOIN_PLAIN}",
    "DeepSpeedOptimizerWrapper": f"belongs to DeepSpeed, which averages gradients itself: {JOIN_PLAIN}",
}
LIBRARIES = ("horovod", "deepspeed")  # with optimizers that have the name of the optimizer inside
HOLDERS = ("AcceleratedOptimizer", "LightningOptimizer", "_FabricOptimizer")  # their attribute `optimizer` is plain


def inner_model(model: nn.Module, allowed: Sequence[str] = ()) -> nn.Module:
    """Return the model without wrappers that leave gradients alone (`torch.compile`, `DataParallel`).

    Args:
        model: Model.
        allowed: Names of classes of its parts and parameters that are not refused.

    Raises:
        TypeError: It is not a module.
        ValueError: A part of it averages gradients or shards parameters itself.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is of type {type(model).__name__}: give a torch.nn.Module")
    for name, part in model.named_modules():
        for kind in _names(part):
            if kind in MODULES and kind not in allowed:
                raise ValueError(f"{name or 'the model'} is wrapped in {kind}, which {MODULES[kind]}")
    for name, p in model.named_parameters():
        if "DTensor" in _names(p) and "DTensor" not in allowed:
            raise ValueError(f"{name} is a DTensor: its library {SHARDS}; {JOIN_BEFORE}, {JOIN_SHARDED}")
    while (inner := _inside(model)) is not None:
        model = inner
    return model


def _inside(model: nn.Module) -> nn.Module | None:
    if any(kind in TRANSPARENT for kind in _names(model)):
        inner: nn.Module = model.module  # type: ignore[assignment]
        return inner
    return compiled_from(model)


def plain_optimizer(given: torch.optim.Optimizer | Sequence[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """Return an optimizer without a framework's wrapper around it; several ones as one that steps all of them.

    Raises:
        TypeError: It is not an optimizer.
        ValueError: It exchanges gradients itself, or holds a loss scaler, or several ones share a parameter.
    """
    if isinstance(given, Sequence):
        optimizers = [_plain(optimizer) for optimizer in given]
        return optimizers[0] if len(optimizers) == 1 else OptimizerList(optimizers)
    return _plain(given)


def _plain(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    kinds = _names(optimizer)
    name = next((kind for kind in kinds if kind in OPTIMIZERS), None)
    if name is not None:
        raise ValueError(f"{name} {OPTIMIZERS[name]}")
    library = type(optimizer).__module__.partition(".")[0]
    if library in LIBRARIES:
        raise ValueError(f"the optimizer belongs to {library}, which exchanges gradients itself: {JOIN_PLAIN}")
    if any(kind in HOLDERS for kind in kinds):
        if getattr(optimizer, "scaler", None) is not None:
            raise ValueError(
                f"{kinds[0]} holds a loss scaler, which me.step() would not call: join its attribute `optimizer`, and"
                " write scaler.step(me) and scaler.update() with its attribute `scaler`"
            )
        return _plain(optimizer.optimizer)  # type: ignore[attr-defined]
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"the optimizer is of type {kinds[0]}: give a torch.optim.Optimizer, or a list of them")
    return optimizer


def _names(x: object) -> list[str]:
    return [kind.__name__ for kind in type(x).__mro__]
