"""The interval of a difference of error rates over seeds and utterances, against its limits and by simulation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest

from murmur.report.error_rate import STUDENT, Errors, difference, difference_over_seeds

WORDS = 10


def run(errors: Sequence[int]) -> Errors:
    return {f"u{i:02d}": (int(wrong), WORDS) for i, wrong in enumerate(errors)}


def test_seeds_that_are_alike_leave_the_noise_of_utterances() -> None:
    first, second = run([1, 4, 2, 6, 3, 5]), run([2, 4, 1, 9, 3, 4])
    one = difference({0: first}, {0: second}).difference
    three = difference_over_seeds(dict.fromkeys(range(3), first), dict.fromkeys(range(3), second))
    assert (three.value, three.low, three.high) == pytest.approx((one.value, one.low, one.high))


@pytest.mark.parametrize("apart", [(1, 2, 4), (0, 3), (-2, 1, 1, 2)])
def test_utterances_that_are_alike_leave_the_t_interval_of_seeds(apart: Sequence[int]) -> None:
    first = {seed: run([3] * 7) for seed in range(len(apart))}
    second = {seed: run([3 + more] * 7) for seed, more in enumerate(apart)}
    found = difference_over_seeds(first, second, replications=100_000)
    percents = [100 * more / WORDS for more in apart]
    reach = STUDENT[0.95][len(apart) - 2] * statistics.stdev(percents) / math.sqrt(len(apart))
    assert found.value == pytest.approx(statistics.mean(percents))
    assert (found.high - found.low) / 2 == pytest.approx(reach, rel=0.05)


def test_intervals_hold_the_difference_as_often_as_they_say() -> None:
    """Two equal systems with noise of training and of utterances; seeds that are drawn hold 0 too rarely."""
    random, held, drawn = np.random.default_rng(0), 0, 0
    for _ in range(200):
        hard = random.normal(40, 10, 60)
        sides = [
            {
                seed: run(np.clip(hard + random.normal(0, 4) + random.normal(0, 6, 60), 0, 99).round())
                for seed in range(3)
            }
            for _ in range(2)
        ]
        found = difference_over_seeds(*sides, replications=500)
        held += found.low <= 0 <= found.high
        errors = np.array([[[pair[0] for pair in each.values()] for each in side.values()] for side in sides])
        seeds, units = random.integers(0, 3, (500, 3)), random.integers(0, 60, (500, 60))
        means = [(errors[1] - errors[0])[np.ix_(s, u)].mean() for s, u in zip(seeds, units, strict=True)]
        low, high = np.quantile(means, [0.025, 0.975])
        drawn += low <= 0 <= high
    assert held >= 0.92 * 200
    assert drawn <= 0.88 * 200


def test_one_seed_and_other_references_are_refused() -> None:
    with pytest.raises(ValueError, match="1 common seed: an interval over seeds needs at least two"):
        difference_over_seeds({0: run([1]), 1: run([2])}, {0: run([1])})
    with pytest.raises(ValueError, match="different references"):
        difference_over_seeds({0: run([1]), 1: run([2])}, {0: run([1]), 1: {"u00": (1, 3)}})
