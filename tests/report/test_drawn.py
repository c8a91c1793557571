"""Texts of ticks: distinct, close to their values, in one unit."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from murmur.report.drawn import tick_texts

UNIT = {"k": 1e3, "M": 1e6, "G": 1e9}


def value_of(text: str) -> float:
    return float(text[:-1]) * UNIT[text[-1]] if text[-1] in UNIT else float(text)


@given(
    mantissa=st.sampled_from((1, 2, 2.5, 5)),
    power=st.integers(-12, 12),
    first=st.integers(-(10**6), 10**6),
    ticks=st.integers(2, 12),
)
@example(2.5, 3, 0, 5)
@example(1, 0, 12_345_670, 6)
@example(5, -7, 0, 4)
def test_ticks_are_told_apart(mantissa: float, power: int, first: int, ticks: int) -> None:
    values = [(first + place) * mantissa * 10.0**power for place in range(ticks)]
    texts = tick_texts(values)
    assert len(set(texts)) == ticks
    step = mantissa * 10.0**power
    assert all(abs(value_of(text) - value) <= 0.011 * step for text, value in zip(texts, values, strict=True))
    assert len({text.lstrip("-0123456789.") for text in texts if text != "0"}) <= 1  # one unit


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0, 2500, 5000], ["0", "2.5k", "5.0k"]),
        ([100_001, 100_002], ["100.001k", "100.002k"]),
        ([-0.4, -0.2, -1e-17], ["-0.4", "-0.2", "0"]),
        ([0, 2e-7, 4e-7], ["0", "2e-7", "4e-7"]),
        ([0.0], ["0"]),
        ([], []),
        ([math.nan, 3.0], ["", "3"]),
    ],
)
def test_texts_are_short(values: list[float], texts: list[str]) -> None:
    assert tick_texts(values) == texts
