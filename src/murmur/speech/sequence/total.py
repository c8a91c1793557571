"""Logarithm of a total probability whose gradient is known: the occupancies of the pdfs.

    d ln Z_n / d score_n(t, c) = gamma_n(t, c)

Shapes: N sequences, T frames, C pdfs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def needs_gradient(scores_NTC: Tensor) -> bool:
    """True if the occupancies will be asked for; without them a criterion needs its forward recursion alone."""
    return torch.is_grad_enabled() and scores_NTC.requires_grad


def with_gradient(scores_NTC: Tensor, log_total_N: Tensor, gamma_NTC: Tensor) -> Tensor:
    """Return ln Z (N,) as a function of the scores, with gamma as its gradient."""
    found: Tensor = _LogTotal.apply(scores_NTC, log_total_N, gamma_NTC)
    return found


class _LogTotal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _scores_NTC: Tensor, log_total_N: Tensor, gamma_NTC: Tensor) -> Tensor:
        ctx.save_for_backward(gamma_NTC)
        return log_total_N.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gamma_NTC,) = ctx.saved_tensors
        return gradients[0][:, None, None] * gamma_NTC, None, None
