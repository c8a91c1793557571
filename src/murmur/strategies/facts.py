"""What each strategy costs and promises; the tests hold every line against the virtual world's ledger and records.

A mean of all is counted as a ring allreduce, 2 (L - 1) / L vectors a learner.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from murmur.learner import Progress
from murmur.mixing import uniform
from murmur.strategies.adaptive_rules import Standing

Vectors = Callable[[Any, int, float], float]  # (strategy, learners, samples of a minibatch) -> sent for a gradient


@dataclass(frozen=True)
class Facts:
    """Facts of a strategy.

    Attributes:
        vectors: of the model's length, sent for a gradient, on average over a long run; adaptive rules as they begin,
            parameter averaging at full width.
        staleness: changes of the weights between the point of a gradient and its application, at most; None: no bound.
        consensus: whether all learners hold the same weights, to the bit, when the strategy has ended.
        exact_alone: whether one learner is the plain training loop, to the bit (with one minibatch a step and no
            factor on the rate).
        outlives: whether those that are in step go on without a lost learner; those that are not in step always do.
        in_step: whether all learners go through the same rounds together, so that the slowest sets the pace.
    """

    vectors: Vectors
    staleness: int | None
    consensus: bool
    exact_alone: bool
    in_step: bool = True
    outlives: bool = False


def allreduce(learners: int) -> float:
    """Vectors that a learner sends for one mean."""
    return 2 * (learners - 1) / learners


def _mixed(strategy: Any, learners: int, _: float) -> float:
    if strategy.mixing is uniform:
        return allreduce(learners)
    rounds, view = 100, range(learners)
    rows = [strategy.mixing(k, view, i) for k in range(rounds) for i in view]
    return sum(len(row) - 1 for row in rows) / len(rows)


def _adapted(strategy: Any, learners: int, _: float) -> float:
    start = Standing(Progress(0, 0.0, 0.0, 0.0, math.nan, math.nan))
    return float(allreduce(learners) / (round(strategy.K(start)) * round(strategy.minibatches(start))))


def _every_iteration(strategy: Any, learners: int, samples: float) -> float:
    return float(allreduce(learners) / max(1, round(strategy.frames_per_iteration / samples)))


def _of_nodes(strategy: Any, learners: int, samples: float) -> float:
    """Sums inside nodes, what the leaders send each other, and what every leader passes on to its members."""
    size = strategy.node_size
    outer = FACTS[type(strategy.outer).__name__].vectors(strategy.outer, learners // size, samples * size)
    passed_on = 0.0 if outer == 0 else (size - 1) / size
    return float(allreduce(size) + outer / size + passed_on)


def _inner(strategy: Any, learners: int, samples: float) -> float:
    return float(FACTS[type(strategy.strategy).__name__].vectors(strategy.strategy, learners, samples))


FACTS: dict[str, Facts] = {
    "SyncSGD": Facts(lambda _, learners, __: allreduce(learners), 0, True, True),
    "KAVG": Facts(lambda s, learners, _: allreduce(learners) / s.K, 0, True, True, outlives=True),
    "BMUF": Facts(lambda s, learners, _: allreduce(learners) / s.K, 0, True, False, outlives=True),
    "AdaptiveKAVG": Facts(_adapted, 0, True, True, outlives=True),
    "ParameterAveraging": Facts(_every_iteration, 0, True, False, outlives=True),
    "DelayByOne": Facts(_mixed, 1, True, True),
    # Of equally fast learners. A half of an exchange may be lost with a learner: at most T_ij |x_j - x_i|.
    "ADPSGD": Facts(_mixed, None, True, True, in_step=False),
    "ASGD": Facts(lambda _, learners, __: 2.0 if learners > 1 else 0.0, None, True, True, in_step=False),
    "SuperLearners": Facts(_of_nodes, None, True, True, in_step=False),
    "Exchanged": Facts(_inner, None, True, True),
    "OwnShares": Facts(_inner, None, True, True, in_step=False),
}
