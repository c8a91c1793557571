"""Bounds on the mean gradient norm of decentralised SGD with stale gradients, and of K-step averaging.

    W_{k+1} = W_k T_k - alpha G(Phi_k),   k = 0 .. K - 1,   all learners from the same weights

f has an M-Lipschitz gradient (M > 0), f(w_0) - min f <= Delta; gradients of all learners are unbiased, independent,
with variance at most sigma^2; the T_k are symmetric, doubly stochastic, independent of the rest and leave on average at
most rho < 1 of the squared disagreement; every snapshot Phi is at most tau rounds old and used once. If

    (i)  4 alpha^2 M^2 (1 + rho) / (1 - rho)^2 <= 1/2      and      (ii)  M alpha + 8 M^2 alpha^2 tau^2 <= 1,      then

    (1 / K) sum_k E |grad f(w-bar_k)|^2
        <=  2 Delta / (alpha K)  +  M alpha sigma^2 / L  +  8 alpha^2 M^2 sigma^2 (tau / L + (L - 1) / (L (1 - rho))).

`docs/theory.md` has the proof. The bound has the form of the theorem of Lian et al. 2018 (arXiv 1710.06952), in which K
counts single gradients (K L here), with different constants.

K-step averaging over T steps of each learner, if M alpha <= 1 and 2 alpha^2 M^2 K (K - 1) <= 1:

    (1 / T) sum_t E |grad f(w-bar_t)|^2
        <=  2 Delta / (alpha T)  +  M alpha sigma^2 / L  +  2 alpha^2 M^2 sigma^2 (1 - 1/L) (K - 1).

Zhou and Cong 2018 (arXiv 1708.01012); Wang and Joshi 2018 (arXiv 1810.08313) choose K by the time of an average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class SmoothProblem:
    """A problem to minimise: `smoothness` M, `variance` sigma^2 of one learner's gradient, `excess` Delta."""

    smoothness: float
    variance: float
    excess: float


@dataclass(frozen=True)
class DecentralisedLearners:
    """L learners, whose averaging has the contraction rho (`mixing.contraction`); `staleness` tau is in rounds."""

    learners: int
    contraction: float = 0.0
    staleness: float = 0.0

    @property
    def apartness(self) -> float:
        """tau + (L - 1) / (1 - rho): the cost of staleness and slow mixing together, times L."""
        return self.staleness + (self.learners - 1) / (1 - self.contraction)


def largest_rate(problem: SmoothProblem, group: DecentralisedLearners) -> float:
    """The largest alpha that conditions (i) and (ii) of the bound allow."""
    rho, tau = group.contraction, group.staleness
    by_mixing = (1 - rho) / math.sqrt(8 * (1 + rho))
    # The root of 8 tau^2 x^2 + x = 1, in a form that includes tau = 0.
    by_staleness = 2 / (1 + math.sqrt(1 + 32 * tau**2))
    return min(by_mixing, by_staleness) / problem.smoothness


def bound(problem: SmoothProblem, group: DecentralisedLearners, rounds: float, rate: float) -> float:
    """Bound on the mean of |grad f(w-bar_k)|^2 over K rounds at a constant rate; infinity above the largest rate."""
    if rate > largest_rate(problem, group) * (1 + 1e-12):
        return math.inf
    M, variance, L = problem.smoothness, problem.variance, group.learners
    noise = M * rate * variance / L
    return 2 * problem.excess / (rate * rounds) + noise + 8 * (rate * M) ** 2 * variance * group.apartness / L


def best_rate(problem: SmoothProblem, learners: int, rounds: float) -> float:
    """sqrt(2 Delta L / (M K sigma^2)): the rate at which the first two terms of the bound are equal and least.

    Their sum is then 2 sqrt(2 Delta M sigma^2 / (L K)): it falls with the root of the number of gradients L K,
    independently of the learners that compute them.
    """
    return math.sqrt(2 * problem.excess * learners / (problem.smoothness * rounds * problem.variance))


def leading_term(problem: SmoothProblem, gradients: float) -> float:
    """2 sqrt(2 Delta M sigma^2 / N) after N gradients of all learners together: the leading term for large N."""
    return 2 * math.sqrt(2 * problem.excess * problem.smoothness * problem.variance / gradients)


def rounds_for_speedup(problem: SmoothProblem, group: DecentralisedLearners) -> float:
    """Number of rounds from which L learners need 1/L of the rounds of one, up to a factor of 2 in the bound.

    From this number on `best_rate` satisfies (i) and (ii), and the third term is at most the sum of the other two:
    K >= 32 Delta M L (tau + (L - 1) / (1 - rho))^2 / sigma^2.
    """
    scale = problem.excess * problem.smoothness * group.learners / problem.variance
    allowed = 2 * problem.excess * group.learners / (problem.smoothness * problem.variance)
    return max(32 * scale * group.apartness**2, allowed / largest_rate(problem, group) ** 2)


def largest_period_rate(problem: SmoothProblem, K: int) -> float:
    """The largest alpha that the conditions of the bound allow."""
    by_period = math.inf if K == 1 else 1 / math.sqrt(2 * K * (K - 1))
    return min(1.0, by_period) / problem.smoothness


def period_bound(problem: SmoothProblem, learners: int, K: int, steps: float, rate: float) -> float:
    """Bound on the mean of |grad f(w-bar)|^2 over T steps of each learner; infinity above the largest rate."""
    if rate > largest_period_rate(problem, K) * (1 + 1e-12):
        return math.inf
    M, variance = problem.smoothness, problem.variance
    apart = 2 * (rate * M) ** 2 * variance * (1 - 1 / learners) * (K - 1)
    return 2 * problem.excess / (rate * steps) + M * rate * variance / learners + apart


def steps_in(seconds: float, K: float, step_seconds: float, averaging_seconds: float) -> float:
    """Steps T of each learner in a time: an average takes its time after every K-th step."""
    return seconds / (step_seconds + averaging_seconds / K)


def best_period(problem: SmoothProblem, learners: int, rate: float, seconds: float, averaging_seconds: float) -> float:
    """The real number K at which the bound after a time is least.

        K^2 = Delta D / (alpha^3 M^2 sigma^2 (1 - 1/L) H)        D: seconds of an average, H: seconds in all

    With D = 0, that is for a number of samples instead of a time, the bound grows with K, and 1 is best. The time of a
    step does not enter: it lengthens all alternatives alike.
    """
    spread = (rate**3) * problem.smoothness**2 * problem.variance * (1 - 1 / learners) * seconds
    return max(1.0, math.sqrt(problem.excess * averaging_seconds / spread)) if spread > 0 else math.inf
