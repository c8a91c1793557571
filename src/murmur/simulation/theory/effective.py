"""Effective learning rate of the consensus, for learners whose gradients are taken at different points.

    w-bar_{k+1} = w-bar_k - alpha g_a,      g_a = (1 / L) sum_j grad f(w_j),  g = grad f(w-bar)
    alpha_e = alpha <g_a, g> / |g|^2

For learners spread normally around w-bar with variance s^2 per coordinate, g_a is the gradient of the smoothed loss
E f(w + s n). Its curvature is bounded even if that of f is not. Zhang et al. 2021 (arXiv 2112.01433).
"""

from __future__ import annotations

import math

from torch import Tensor


def effective_rate(rate: float, mean_gradient: Tensor, gradient: Tensor) -> float:
    """alpha_e = alpha <g_a, g> / |g|^2 from the mean of the learners' gradients and the gradient at their consensus.

    Raises:
        ValueError: the gradient at the consensus is zero, so that no rate is defined.
    """
    square = float(gradient @ gradient)
    if square == 0:
        raise ValueError("the gradient at the consensus is zero: there is no effective rate at a stationary point")
    return rate * float(mean_gradient @ gradient) / square


def effective_cosine_rate(rate: float, spread_square: float) -> float:
    """alpha exp(-s^2 / 2): alpha_e on f(w) = sum_p (1 - cos w_p), as E sin(w + s n) = exp(-s^2 / 2) sin w.

    Args:
        rate: alpha.
        spread_square: s^2 of one coordinate.
    """
    return rate * math.exp(-spread_square / 2)


def smoothed_smoothness(largest_gradient: float, spread: float) -> float:
    """2 G / s: a Lipschitz constant of the gradient of E f(w + s n) for any f with |grad f| <= G."""
    if spread <= 0:
        raise ValueError(f"smoothing needs a spread above 0, got {spread}")
    return 2 * largest_gradient / spread
