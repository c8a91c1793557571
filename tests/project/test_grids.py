"""The choice of cases in `grids.py`."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.grids import covering, thinned


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_every_two_values_of_two_axes_meet(sizes: list[int]) -> None:
    cases = list(product(*map(range, sizes)))
    strength = min(2, len(sizes) - 1)
    chosen = covering(cases, strength)
    for axes in combinations(range(len(sizes)), strength):
        met = {tuple(case[axis] for axis in axes) for case in chosen}
        assert met == set(product(*(range(sizes[axis]) for axis in axes)))
    assert len(chosen) <= len(cases)


def test_the_others_are_slow_and_nothing_is_left_out() -> None:
    cases = thinned([1, 2, 3], [pytest.param("a", id="first"), "b"], [True, False])
    assert [case.values for case in cases] == list(product([1, 2, 3], "ab", [True, False]))
    assert cases[0].id == "1-first-True"
    quick = [case for case in cases if not case.marks]
    assert len(quick) == 6
    assert all(mark.name == "slow" for case in cases for mark in case.marks)
