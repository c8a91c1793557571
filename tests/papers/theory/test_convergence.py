"""The bound on the mean gradient norm: its shape, its conditions, and training in virtual time that satisfies it."""

from __future__ import annotations

import math

import pytest
import torch

from murmur.core.learner import Strategy
from murmur.core.mixing import contraction, randomized_ring, ring
from murmur.simulation.planner.course import Even, Walk, cosine, follow
from murmur.strategies import ADPSGD, KAVG, SyncSGD
from murmur.strategies.delay_by_one import DelayByOne
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds
from murmur_papers.theory.convergence import (
    DecentralisedLearners,
    SmoothProblem,
    best_period,
    best_rate,
    bound,
    largest_period_rate,
    largest_rate,
    leading_term,
    period_bound,
    rounds_for_speedup,
    steps_in,
)

PROBLEM = SmoothProblem(smoothness=2.0, variance=3.0, excess=0.7)
START = (torch.rand(64, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 - 1) * math.pi
LANDSCAPE = cosine(START, noise=1.0)
HILLS = SmoothProblem(1.0, LANDSCAPE.variance, float(LANDSCAPE.loss(START)))


@pytest.mark.parametrize(
    "group",
    [
        DecentralisedLearners(1),
        DecentralisedLearners(8, 0.5),
        DecentralisedLearners(8, 0.9, 3.0),
        DecentralisedLearners(8, 0.0, 5.0),
    ],
)
def test_where_the_bound_speaks(group: DecentralisedLearners) -> None:
    most, M = largest_rate(PROBLEM, group), PROBLEM.smoothness
    for rate, inside in ((0.999 * most, True), (1.001 * most, False)):
        first = 4 * rate**2 * M**2 * (1 + group.contraction) / (1 - group.contraction) ** 2 <= 0.5
        second = M * rate + 8 * M**2 * rate**2 * group.staleness**2 <= 1
        assert (first and second) == inside
        assert math.isfinite(bound(PROBLEM, group, 1000, rate)) == inside


def test_best_rate_is_best_and_gives_the_leading_term() -> None:
    group, rounds = DecentralisedLearners(4), 1e9
    rate = best_rate(PROBLEM, 4, rounds)
    there = bound(PROBLEM, group, rounds, rate)
    assert there == pytest.approx(leading_term(PROBLEM, 4 * rounds), rel=1e-3)
    assert all(there <= bound(PROBLEM, group, rounds, rate * f) for f in (0.8, 1.25))


@pytest.mark.parametrize(
    "group",
    [
        DecentralisedLearners(2),
        DecentralisedLearners(16, 0.9),
        DecentralisedLearners(16, 0.3, 5.0),
        DecentralisedLearners(2, 0.0, 100.0),
    ],
)
def test_linear_speed_up_from_there_on(group: DecentralisedLearners) -> None:
    enough = rounds_for_speedup(PROBLEM, group)
    for rounds in (enough, 30 * enough):
        ours = bound(PROBLEM, group, rounds, best_rate(PROBLEM, group.learners, rounds))
        alone = leading_term(PROBLEM, group.learners * rounds)  # one learner, as many gradients
        assert ours <= 2.0001 * alone
    early = enough / 4
    assert bound(PROBLEM, group, early, best_rate(PROBLEM, group.learners, early)) > 2 * leading_term(
        PROBLEM, group.learners * early
    )


def test_staleness_and_gap_fade() -> None:
    """At the best rate the leading term falls with the root of K, the cost of staleness and mixing with K."""
    near, far = DecentralisedLearners(8), DecentralisedLearners(8, 0.8, 4.0)
    extra = []
    for rounds in (1e6, 1e8):
        rate = best_rate(PROBLEM, 8, rounds)
        extra.append(bound(PROBLEM, far, rounds, rate) - bound(PROBLEM, near, rounds, rate))
    assert extra[0] / extra[1] == pytest.approx(100, rel=1e-6)


def mean_square(
    strategy: Strategy, learners: int, gradients: int, rate: float, cluster: Cluster | None = None
) -> float:
    cluster = cluster or Cluster(learners=learners, compute=Even())
    course = follow(strategy, cluster, Walk(LANDSCAPE, rate), gradients)
    return sum(course.gradient_square) / len(course.gradient_square)


@pytest.mark.parametrize("strategy", [SyncSGD(), DelayByOne(), ADPSGD(randomized_ring)], ids=lambda s: type(s).__name__)
def test_the_norm_falls_with_the_root_of_the_gradients(strategy: Strategy) -> None:
    """Slope -1/2 in log-log over a factor of 8, four learners: seeds move it by less than 0.03."""
    ends = [mean_square(strategy, 4, N, best_rate(HILLS, 4, N / 4)) for N in (256, 2048)]
    assert math.log(ends[1] / ends[0]) / math.log(8) == pytest.approx(-0.5, abs=0.06)
    assert ends[1] <= leading_term(HILLS, 2048)


@pytest.mark.parametrize("learners", [4, 8])
def test_linear_speed_up_in_samples(learners: int) -> None:
    """As many gradients in 1/L of the rounds reach the same norm, within 15 %."""
    N = 2048
    ours = mean_square(ADPSGD(randomized_ring), learners, N, best_rate(HILLS, learners, N / learners))
    alone = mean_square(SyncSGD(), 1, N, best_rate(HILLS, 1, N))
    assert ours / alone == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("mixing", [ring, randomized_ring])
def test_the_bound_is_kept_whatever_the_gap(mixing: object) -> None:
    group = DecentralisedLearners(8, contraction(mixing, 8, 100))  # type: ignore[arg-type]
    rate, rounds = largest_rate(HILLS, group), 100
    assert mean_square(ADPSGD(mixing), 8, 8 * rounds, rate) < bound(HILLS, group, rounds, rate)  # type: ignore[arg-type]


def test_a_straggler_costs_little() -> None:
    """One of eight learners is ten times slower: its gradients are ten rounds old, and nearly as useful."""
    rate = best_rate(HILLS, 8, 128)
    slow = Cluster(learners=8, compute=ConstantSeconds(0.1, {3: 10.0}))
    even = mean_square(ADPSGD(ring), 8, 1024, rate)
    assert mean_square(ADPSGD(ring), 8, 1024, rate, slow) < 1.15 * even


@pytest.mark.parametrize("learners", [1, 4])
def test_with_an_average_after_every_step_it_is_the_bound_of_exact_sums(learners: int) -> None:
    """Which has no term of disagreement."""
    whole = period_bound(PROBLEM, learners, 1, 100, 0.05)
    assert whole == pytest.approx(2 * 0.7 / (0.05 * 100) + 2 * 0.05 * 3 / learners)
    assert whole <= bound(PROBLEM, DecentralisedLearners(learners), 100, 0.05)


def test_more_local_steps_cost_at_equal_samples() -> None:
    values = [period_bound(PROBLEM, 8, K, 1000, 0.005) for K in (1, 2, 4, 8, 16)]
    assert values == sorted(values)
    assert period_bound(PROBLEM, 1, 16, 1000, 0.005) == period_bound(PROBLEM, 1, 1, 1000, 0.005)
    assert best_period(PROBLEM, 8, 0.01, 100.0, 0.0) == 1.0


@pytest.mark.parametrize("K", [1, 2, 8])
def test_conditions_at_the_largest_rate(K: int) -> None:
    rate = largest_period_rate(PROBLEM, K)
    assert max(2.0 * rate, 2 * rate**2 * 4 * K * (K - 1)) == pytest.approx(1.0)
    assert math.isinf(period_bound(PROBLEM, 4, K, 100, rate * 1.001))


@pytest.mark.parametrize(("seconds", "averaging"), [(100.0, 0.4), (1000.0, 5.0), (50.0, 0.01)])
def test_the_best_period_is_the_least_of_the_bound(seconds: float, averaging: float) -> None:
    def value(K: float) -> float:
        T = steps_in(seconds, K, 0.1, averaging)
        return 2 * 0.7 / (0.004 * T) + 2 * (0.004 * 2.0) ** 2 * 3.0 * (1 - 1 / 8) * (K - 1)

    found = best_period(PROBLEM, 8, 0.004, seconds, averaging)
    grid = [1 + 0.01 * i for i in range(60_000)]
    assert found == pytest.approx(min(grid, key=value), abs=0.02)


@pytest.mark.parametrize("K", [1, 4, 16])
def test_training_stays_below_it(K: int) -> None:
    start = (torch.rand(32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 - 1) * math.pi
    hills = cosine(start, 1.0)
    problem = SmoothProblem(1.0, hills.variance, float(hills.loss(start)))
    rate = 0.9 * largest_period_rate(problem, K) / 4
    course = follow(KAVG(K), Cluster(4, compute=Even()), Walk(hills, rate), 4 * 64)
    assert sum(course.gradient_square) / len(course.gradient_square) <= period_bound(problem, 4, K, 64, rate)
