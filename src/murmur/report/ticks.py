"""Texts of an axis's ticks: short, in one unit for the whole axis, and all different.

The page's script has the same rule (`tickTexts` in page.js).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))  # used from this magnitude on
LARGEST, SMALLEST = 1e12, 1e-3  # a power of ten is written outside this range
LEAST_EXPONENT = -300  # smaller powers of ten lose digits
MOST_DECIMALS = 15
CLOSE = 0.01  # allowed error of a text, as a share of the distance between two ticks


def tick_texts(values: Sequence[float]) -> list[str]:
    """Texts of these ticks, with the fewest decimals that are exact to a hundredth of the distance between two."""
    finite = sorted({value for value in values if math.isfinite(value)})
    largest = max((abs(value) for value in finite), default=0.0)
    step = min((b - a for a, b in pairwise(finite)), default=largest)
    scale, unit = scale_of(largest)
    for decimals in range(MOST_DECIMALS + 1):
        if all(abs(float(f"{value / scale:.{decimals}f}") * scale - value) <= CLOSE * step for value in finite):
            break
    return [written(value / scale, decimals, unit) if math.isfinite(value) else "" for value in values]


def scale_of(largest: float) -> tuple[float, str]:
    """The unit of an axis that extends this far from 0."""
    if largest == 0 or SMALLEST <= largest < LARGEST:
        return next(((scale, unit) for scale, unit in UNITS if largest >= scale), (1.0, ""))
    exponent = max(LEAST_EXPONENT, math.floor(math.log10(largest)))
    return 10.0**exponent, f"e{exponent}"


def written(value: float, decimals: int, unit: str) -> str:
    """A scaled value with its unit; 0 has neither sign nor unit."""
    text = f"{value:.{decimals}f}"
    return "0" if float(text) == 0 else f"{text}{unit}"
