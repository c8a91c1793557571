"""Distance between learners, and the largest stable rates, on a quadratic in closed form; the effective rate.

    f(w) = h |w|^2 / 2,   a gradient is h w + n with E |n|^2 = sigma^2,   W_{k+1} = W_k T_k - alpha G(W_{k - tau})

The eigenvectors of a symmetric T do not mix. The disagreement of the learners along the j-th one, with eigenvalue
lambda_j, is a process of its own,

    z_{k+1} = lambda_j z_k - alpha h z_{k - tau} - alpha n,      j = 1 (lambda = 1) the consensus, noise sigma^2 / L.

For tau = 0 the mean over learners of the squared distance to the consensus therefore converges to

    D^2 = (1 / L) sum_{j > 1} alpha^2 sigma^2 / (1 - (lambda_j - alpha h)^2).

For the consensus a root of z^{tau + 1} - z^tau + a, a = alpha h, reaches the unit circle at z = exp(i theta) where
a = z^tau (1 - z) is positive: |a| = 2 sin(theta / 2), and its argument (tau + 1/2) theta - pi/2 is 0 first at theta =
pi / (2 tau + 1). The matrices are those of Cui et al. 2021 (arXiv 2110.11199) and Zhang et al. 2020 (arXiv 2002.01119).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from murmur.core.mixing import Mixing, matrix


def ring_eigenvalues(learners: int) -> list[float]:
    """Eigenvalues (1 + 2 cos(2 pi j / L)) / 3, j = 0 .. L - 1, of the fixed ring of L >= 3 learners; the first is 1."""
    return [(1 + 2 * math.cos(2 * math.pi * j / learners)) / 3 for j in range(learners)]


def spectral_gap(t: torch.Tensor) -> float:
    """1 - |lambda_2|, with lambda_2 the eigenvalue of second largest modulus of a mixing matrix; 1 for one learner."""
    if len(t) == 1:
        return 1.0
    moduli = torch.linalg.eigvals(t).abs().sort(descending=True).values
    return float(1 - moduli[1])


def ring_gap(learners: int) -> float:
    """Spectral gap 1 - max_j |lambda_j| of the fixed ring; about 4 pi^2 / (3 L^2) for many learners."""
    return 1 - max(abs(value) for value in ring_eigenvalues(learners)[1:])


def randomized_ring_contraction(learners: int) -> float:
    """(L - 3) / (3 (L - 1)): the mean of T_k, and that of T_k^2, off the consensus, for L >= 3 learners.

    Both T_k and T_k^2 have 1/3 on their diagonals, and a random order has no other structure: both means are equal.
    """
    return (learners - 3) / (3 * (learners - 1))


def mode_variance(eigenvalue: float, step: float, delay: int = 0) -> float:
    """Stationary E z^2 of z_{k+1} = lambda z_k - step z_{k - delay} + n, E n^2 = 1; infinity if there is none."""
    A = companion(eigenvalue, step, delay)
    if radius(eigenvalue, step, delay) >= 1:
        return math.inf
    size = len(A)
    noise = np.zeros((size, size))
    noise[0, 0] = 1.0
    solved = np.linalg.solve(np.eye(size * size) - np.kron(A, A), noise.ravel())  # V = A V A' + noise
    return float(solved[0])


@dataclass(frozen=True)
class NoisyQuadratic:
    """A quadratic under constant-rate SGD.

    Attributes:
        curvature: h.
        variance: sigma^2 = E |n|^2 of one learner's gradient, summed over coordinates.
        rate: alpha.
    """

    curvature: float
    variance: float
    rate: float

    @property
    def step(self) -> float:
        """alpha h."""
        return self.rate * self.curvature

    def distance_square(self, eigenvalues: list[float], delay: int = 0) -> float:
        """Stationary D^2 for a fixed T with these eigenvalues, the first of them that of the consensus."""
        modes = sum(mode_variance(value, self.step, delay) for value in eigenvalues[1:])
        return self.rate**2 * self.variance * modes / len(eigenvalues)

    def randomized_distance_square(self, learners: int) -> float:
        """Stationary D^2 over the randomised ring, tau = 0:  (1 - 1/L) alpha^2 sigma^2 / (1 - rho + 2 a rho - a^2).

        rho = `randomized_ring_contraction`, a = alpha h: E (T - a)^2 = rho - 2 a rho + a^2 off the consensus.
        """
        rho = randomized_ring_contraction(learners)
        kept = rho - 2 * self.step * rho + self.step**2
        if kept >= 1:
            return math.inf
        return (1 - 1 / learners) * self.rate**2 * self.variance / (1 - kept)

    def distance_square_through(self, mixing: Mixing, learners: int, rounds: int = 400) -> float:
        """D^2 for any mixing, tau = 0: S_{k+1} = A_k S_k A_k + alpha^2 sigma^2 P with A_k = T_k - alpha h P.

        P removes the consensus. The result is the mean over the last half of the rounds; choose many times 1 / gap.
        """
        off = torch.eye(learners, dtype=torch.float64) - 1 / learners
        spread, found = torch.zeros_like(off), []
        for k in range(rounds):
            A = matrix(mixing, k, range(learners)) @ off - self.step * off
            spread = A @ spread @ A.T + self.rate**2 * self.variance * off
            found.append(float(spread.trace()) / learners)
        return sum(found[rounds // 2 :]) / len(found[rounds // 2 :])


def companion(eigenvalue: float, step: float, delay: int) -> NDArray[np.float64]:
    """Matrix that advances (z_k, ..., z_{k - tau}) by one round; its eigenvalues are the polynomial's roots."""
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
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def largest_mixed_step(eigenvalues: Iterable[float]) -> float:
    """Largest alpha h at which all modes of a T with these eigenvalues are stable without staleness: a < 1 + lambda."""
    return 1 + min(eigenvalues)


def largest_randomized_step(contraction: float) -> float:
    """Largest stable alpha h over the randomised ring with gradients of age 0: rho + sqrt(rho^2 - rho + 1).

    At this value the factor per round on the mean squared disagreement, rho - 2 a rho + a^2, reaches 1.
    """
    return contraction + math.sqrt(contraction**2 - contraction + 1)


def effective_cosine_rate(rate: float, spread_square: float) -> float:
    """Effective rate alpha exp(-s^2 / 2) of the consensus on f(w) = sum_p (1 - cos w_p); s^2: spread of a coordinate.

    alpha_e = alpha <g_a, g> / |g|^2, g_a the mean of grad f(w + s n), and E sin(w + s n) = exp(-s^2 / 2) sin w. Zhang
    et al. 2021 (arXiv 2112.01433).
    """
    return rate * math.exp(-spread_square / 2)
