"""Grids of cases of which `make test` runs a part and `make test-all` the whole."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from tests.support.named import named


def thinned(*axes: Sequence[Any]) -> list[ParameterSet]:
    """Product of axes for `parametrize`; cases beyond a pairwise choice are marked slow.

    Every two values of two axes meet in one case that is not slow; with two axes, every value occurs in one. Values may
    be `pytest.param`s with ids.
    """
    cases = list(product(*(range(len(axis)) for axis in axes)))
    strength = min(2, len(axes) - 1)
    chosen = covering(cases, strength)
    return [_param(axes, case, slow=case not in chosen) for case in cases]


def few(values: Sequence[Any], one_in: int = 3) -> list[ParameterSet]:
    """Values for `parametrize`; one in `one_in` is not marked slow."""
    return [_param([values], (n,), slow=n % one_in > 0) for n in range(len(values))]


def covering(cases: Sequence[tuple[int, ...]], strength: int) -> set[tuple[int, ...]]:
    """Greedy choice of cases in which all combinations of `strength` coordinates occur that occur in `cases`."""

    def parts(case: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return set(combinations(enumerate(case), strength))

    left = set().union(*map(parts, cases))
    chosen: set[tuple[int, ...]] = set()
    while left:
        best = max(cases, key=lambda case: len(parts(case) & left))
        chosen.add(best)
        left -= parts(best)
    return chosen


def _param(axes: Sequence[Sequence[Any]], case: tuple[int, ...], slow: bool) -> ParameterSet:
    values, names, marks = [], [], [pytest.mark.slow] if slow else []
    for axis, index in zip(axes, case, strict=True):
        value = axis[index]
        if isinstance(value, ParameterSet):
            values += value.values
            names.append(value.id)
            marks += value.marks
        else:
            values.append(value)
            names.append(named(value))
    return pytest.param(*values, marks=marks, id="-".join(map(str, names)))
