"""Largest stable learning rate of a strategy on a quadratic of curvature h, from characteristic polynomials.

    z_{k+1} = lambda z_k - a z_{k - tau}        a = alpha h, lambda an eigenvalue of T, tau the staleness in rounds
    z^{tau + 1} - lambda z^tau + a = 0          stable if every root lies inside the unit circle

For the consensus (lambda = 1) a root reaches the circle at z = exp(i theta) where a = z^tau (1 - z) is a positive
number: |a| = 2 sin(theta / 2), and its argument (tau + 1/2) theta - pi/2 is 0 first at theta = pi / (2 tau + 1). Hence

    a < 2 sin(pi / (2 (2 tau + 1)))             2 for no staleness, 1 for one round, about pi / (2 tau + 1) for many.

The disagreement of learners is stable for a < 1 + lambda without staleness, and for a < 1 with one round of staleness,
for every lambda.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
HALVINGS = 60


def companion(eigenvalue: float, step: float, delay: int) -> Matrix:
    """Matrix that advances (z_k, ..., z_{k - tau}) by one round; its eigenvalues are the polynomial's roots.

    Raises:
        ValueError: the delay is negative.
    """
    if delay < 0:
        raise ValueError(f"a delay is a number of rounds, not {delay}")
    A = np.zeros((delay + 1, delay + 1))
    A[0, 0] = eigenvalue
    A[0, delay] -= step
    A[np.arange(1, delay + 1), np.arange(delay)] = 1.0
    return A


def radius(eigenvalue: float, step: float, delay: int) -> float:
    """Largest modulus of a root: the factor on a disturbance per round; below 1 the disturbance decays."""
    return float(np.abs(np.linalg.eigvals(companion(eigenvalue, step, delay))).max())


def largest_step(delay: int) -> float:
    """Largest stable alpha h of one learner, or of the consensus, with gradients that are `delay` steps old."""
    if delay < 0:
        raise ValueError(f"a delay is a number of steps, not {delay}")
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def largest_mixed_step(eigenvalues: Iterable[float], delay: int = 0) -> float:
    """Largest alpha h at which all modes of a fixed mixing are stable, found by bisection.

    Args:
        eigenvalues: Eigenvalues of T, including the 1 of the consensus.
        delay: Age of the gradients in rounds.
    """
    least = 2.0
    for value in eigenvalues:
        low, high = 0.0, 2.0 + 1e-9
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if radius(value, middle, delay) < 1 else (low, middle)
        least = min(least, high)
    return least


def largest_randomized_step(contraction: float) -> float:
    """Largest stable alpha h over the randomised ring with gradients of age 0: rho + sqrt(rho^2 - rho + 1).

    At this value the factor per round on the mean squared disagreement, rho - 2 a rho + a^2, reaches 1.
    """
    return contraction + math.sqrt(contraction**2 - contraction + 1)
