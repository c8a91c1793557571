"""Loops hidden in a framework: the framework calls `optimizer.step()`, and the strategy takes the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from murmur.user_loop.joined import Joined
from murmur.user_loop.optimizer_list import each_of

UNSCALES = "_step_supports_amp_scaling"  # mark of optimizers that unscale by themselves, as torch.amp reads it
Closure = Callable[[], Any]
Samples = float | Callable[[], float]
Clip = float | Callable[[], float | None] | None


@contextmanager
def routed(
    me: Joined, samples: Samples = 1.0, clip: Clip = None, loss: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Turn every `step()` of the joined optimizer inside the block into a `me.step(samples, loss, clip)`.

    A closure is called first, once: frameworks compute the gradient in it. The strategy gets the loss that it returns.
    Schedulers may be made before the block or inside it. Of several optimizers, all of which the framework steps before
    it clears any gradient, the step of the last one in the list is that of all; so is one of `me.optimizer`.

    Args:
        me: Learner in its block.
        samples: Samples of each step; a function is called before each step, for minibatches that differ in size.
        clip: Largest norm of the gradient, as in `Joined.step`; a function is called before each step.
        loss: Returns the mean loss of a step without a closure, or None.

    Raises:
        RuntimeError: In a step of the last of several optimizers: gradients of another one have been cleared.
    """
    route = Route(me, samples, clip, loss)
    *firsts, last = each_of(me.optimizer)
    with ExitStack() as stack:
        for optimizer in firsts:
            stack.enter_context(route.replaced(optimizer, route.wait))
        stack.enter_context(unscaling(me.optimizer, True))
        if me.optimizer is not last:
            stack.enter_context(route.replaced(me.optimizer, route.step))
        stack.enter_context(route.replaced(last, route.step))
        yield


class Route:
    """Way from the steps of a framework's optimizers to the strategy's."""

    def __init__(self, me: Joined, samples: Samples, clip: Clip, loss: Callable[[], object]) -> None:
        self.me, self.samples, self.clip, self.loss = me, samples, clip, loss
        self._waiting: list[tuple[Tensor, Tensor]] = []  # weights of the other optimizers, and their gradients

    def wait(self, optimizer: torch.optim.Optimizer, _: Any) -> None:
        """Leave the step of an optimizer to that of the last one."""
        _refuse_scaling(optimizer)
        tensors = (p for group in optimizer.param_groups for p in group["params"])
        self._waiting += [(p, p.grad) for p in tensors if p.grad is not None]

    def step(self, optimizer: torch.optim.Optimizer, loss: Any) -> None:
        if optimizer is not self.me.optimizer:
            _refuse_scaling(optimizer)
        waiting, self._waiting = self._waiting, []
        if any(p.grad is not gradient for p, gradient in waiting):
            raise RuntimeError(
                "gradients were cleared before the last of the joined optimizers was stepped: step all of them first,"
                " and call zero_grad() then"
            )
        samples = self.samples() if callable(self.samples) else self.samples
        clip = self.clip() if callable(self.clip) else self.clip
        with _scaling_of(optimizer, self.me):
            self.me.step(samples, _number(loss), clip)

    @contextmanager
    def replaced(
        self, optimizer: torch.optim.Optimizer, instead: Callable[[torch.optim.Optimizer, Any], None]
    ) -> Iterator[None]:
        """Call `instead` with the loss of a closure in place of an optimizer's step, inside the block."""
        plain = optimizer.step
        over = False

        @wraps(plain)  # with the mark of a scheduler that has wrapped it
        def step(_: torch.optim.Optimizer, closure: Closure | None = None) -> Any:
            if self.me.stepping or over:
                return plain() if closure is None else plain(closure)
            loss = None if closure is None else closure()
            instead(optimizer, self.loss() if closure is None else loss)
            return loss

        method = MethodType(step, optimizer)  # a scheduler made inside the block wraps the method of an optimizer
        optimizer.step = method  # type: ignore[method-assign]
        try:
            yield
        finally:
            if optimizer.step is method:
                optimizer.step = plain  # type: ignore[method-assign]
            over = True  # a scheduler's wrapper that was made inside the block stays, and leads here


@contextmanager
def unscaling(optimizer: torch.optim.Optimizer, unscales: bool) -> Iterator[None]:
    """Mark an optimizer, inside the block, as one that unscales gradients itself.

    A loss scaler calls `step()` of such a one also when gradients overflow, and leaves unscaling to it.
    """
    before = getattr(optimizer, UNSCALES, False)
    setattr(optimizer, UNSCALES, unscales)
    try:
        yield
    finally:
        setattr(optimizer, UNSCALES, before)


def _refuse_scaling(optimizer: torch.optim.Optimizer) -> None:
    if "found_inf" in vars(optimizer):
        raise RuntimeError(
            f"{type(optimizer).__name__} unscales gradients by itself, which several optimizers cannot do together:"
            " make it with fused=False"
        )


@contextmanager
def _scaling_of(optimizer: torch.optim.Optimizer, me: Joined) -> Iterator[None]:
    """Move what a loss scaler tells an optimizer that unscales by itself to `me`, inside the block."""
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
