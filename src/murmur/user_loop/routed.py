"""Loops hidden in a framework: the framework calls `optimizer.step()`, and the strategy takes the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from murmur.user_loop.joined import Joined

Closure = Callable[[], Any]


@contextmanager
def routed(me: Joined, samples: float = 1.0) -> Iterator[None]:
    """Turn every `step()` of the joined optimizer inside the block into a `me.step(samples)`.

    A closure is called first, once: frameworks compute the gradient in it. The strategy gets the loss that it returns.
    Schedulers may be made before the block or inside it.
    """
    optimizer = me.optimizer
    plain = optimizer.step
    inside = False

    @wraps(plain)  # with the mark of a scheduler that has wrapped it
    def step(_: torch.optim.Optimizer, closure: Closure | None = None) -> Any:
        nonlocal inside
        if inside:
            return plain() if closure is None else plain(closure)
        loss = None if closure is None else closure()
        inside = True
        try:
            with _scaling_of(optimizer, me):
                me.step(samples, loss=_number(loss))
        finally:
            inside = False
        return loss

    method = MethodType(step, optimizer)  # a scheduler that is made inside the block wraps the method of an optimizer
    optimizer.step = method  # type: ignore[method-assign]
    try:
        yield
    finally:
        if optimizer.step is method:
            optimizer.step = plain  # type: ignore[method-assign]
        inside = True  # a scheduler's wrapper that was made inside the block stays, and leads here


@contextmanager
def _scaling_of(optimizer: torch.optim.Optimizer, me: Joined) -> Iterator[None]:
    """Move what a loss scaler tells an optimizer that unscales by itself (fused ones do) to `me`, inside the block."""
    names: tuple[str, ...] = ("grad_scale", "found_inf")
    told = {name: vars(optimizer).pop(name) for name in names if name in vars(optimizer)}
    vars(me).update(told)
    try:
        yield
    finally:
        for name in told:
            delattr(me, name)
        vars(optimizer).update(told)  # the scaler deletes them


def _number(loss: object) -> float | None:
    """Return a loss as a number; None if it is not one, for closures may return anything."""
    if isinstance(loss, Tensor) and loss.numel() == 1 and not loss.is_complex():
        return float(loss.detach())
    return float(loss) if isinstance(loss, int | float) else None
