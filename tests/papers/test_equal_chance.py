"""The F test over seeds against its tables and by simulation."""

from __future__ import annotations

import math
import random

import pytest

from murmur_papers.studies.verdicts import equal_chance


def with_f(value: float, k: int, n: int) -> list[list[float]]:
    """k groups of n values whose F ratio is `value`: residuals of fixed form, group means spread to fit."""
    residuals = [[math.sin(1.7 * g * n + s) for s in range(n)] for g in range(k)]
    rows = [sum(r) / n for r in residuals]
    columns = [sum(residuals[g][s] for g in range(k)) / k for s in range(n)]
    whole = sum(rows) / k
    clean = [[residuals[g][s] - rows[g] - columns[s] + whole for s in range(n)] for g in range(k)]
    left = sum(v * v for group in clean for v in group)
    means = [g - (k - 1) / 2 for g in range(k)]
    between = value * (k - 1) * left / ((k - 1) * (n - 1))
    times = math.sqrt(between / (n * sum(m * m for m in means)))
    return [[clean[g][s] + times * means[g] + 5.0 * s for s in range(n)] for g in range(k)]  # seeds differ much


@pytest.mark.parametrize(("value", "k", "n", "chance"), [
    (6.944, 3, 3, 0.05), (18.0, 3, 3, 0.01), (4.757, 4, 3, 0.05), (9.780, 4, 3, 0.01), (18.51, 2, 3, 0.05),
    (161.4, 2, 2, 0.05), (3.287, 4, 6, 0.05), (4.153, 4, 6, 0.025), (4.103, 3, 6, 0.05), (7.709, 2, 5, 0.05),
])  # fmt: skip
def test_critical_values_are_those_of_the_tables(value: float, k: int, n: int, chance: float) -> None:
    assert equal_chance(with_f(value, k, n)) == pytest.approx(chance, rel=2e-3)


def test_groups_that_are_alike_are_rarely_called_different() -> None:
    draw = random.Random(1)
    found = [equal_chance([[draw.gauss(0, 1) for _ in range(3)] for _ in range(4)]) for _ in range(2000)]
    assert 0.035 < sum(chance < 0.05 for chance in found) / len(found) < 0.065
    assert equal_chance([[1.0, 2.0, 3.0]] * 3) == 1.0
    assert equal_chance([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0], [1.0, 2.0, 3.0]]) < 1e-9
