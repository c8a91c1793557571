"""Lightning's precision plugins around a joined optimizer: clipping of means, also of scaled gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from murmur.user_loop.routed import unscaling


@contextmanager
def precision_of_means(plugin: Any, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Adapt a precision plugin to a joined optimizer inside the block.

    The plugin clips the gradient that the optimizer steps with, after the exchange: for SyncSGD the mean, as under DDP.
    A GradScaler leaves unscaling to the strategy (`routed`); when the plugin clips, gradients are unscaled.
    """
    clip, asked = plugin.clip_gradients, list[Callable[[], None]]()

    def ask(*args: Any, **kwargs: Any) -> None:
        asked[:] = [partial(clip, *args, **kwargs)]

    def before_step(*_: object) -> None:
        with unscaling(optimizer, False):  # gradients are unscaled now
            while asked:
                asked.pop()()

    hook = optimizer.register_step_pre_hook(before_step)
    plugin.clip_gradients = ask
    try:
        yield
    finally:
        del plugin.clip_gradients
        hook.remove()
