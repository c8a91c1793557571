"""A value whose gradient is not finite."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class _Spoiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]  # noqa: ARG004
        return g * math.inf


def spoiled(x: Tensor) -> Tensor:
    """Return x, with a gradient that is not finite."""
    return _Spoiled.apply(x)  # type: ignore[no-any-return, no-untyped-call]
