"""Figures and bars of `sixteen_devices.py`, from its rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from measure import bar
from murmur.comparison.rows import Row
from murmur.report.error_rate import difference
from sixteen_study import (
    DELAYED,
    DIFFERENCE,
    FIXED,
    ORDER,
    RANDOMISED,
    SEEDS,
    SPEED_UP,
    SPEED_UP_SLOW,
    WORDS,
    Scale,
    nodes,
)

LEAST, LEAST_SLOW, WITHIN, HALF_WIDTH, TIE = 12.0, 10.0, 0.10, 1.5, 0.03


def speed_up(row: Row) -> float:
    """Seconds of one learner of the same pace for the minibatches of a run, over those of the run."""
    return float(row["alone"] * row["minibatches"] / row["seconds"])


def errors_of_prediction(row: Row) -> dict[str, float]:
    """predicted / real - 1."""
    return {name: seconds / row["seconds"] - 1 for name, seconds in row["predicted"].items()}


def runs(rows: Sequence[Row], strategy: str | None = None, slow: bool = False) -> list[Row]:
    """Rows of learners on hosts, with or without a slow one."""
    return [
        row
        for row in rows
        if row["cell"]["kind"] == "devices"
        and (row["cell"]["slow"] != 1) == slow
        and strategy in (None, row["cell"]["strategy"])
    ]


def wrong_pairs(rows: Sequence[Row]) -> list[str]:
    """Pairs of runs of one kind whose order a prediction has wrong; those that differ by less than TIE are left out."""
    wrong = []
    for slow in (False, True):
        for a, b in combinations(runs(rows, slow=slow), 2):
            real = pace(a, a["seconds"]) / pace(b, b["seconds"])
            if max(real, 1 / real) <= 1 + TIE:
                continue
            for name in a["predicted"]:
                told = pace(a, a["predicted"][name]) / pace(b, b["predicted"][name])
                if (told > 1) != (real > 1):
                    wrong.append(f"{name}: {a['name']} over {b['name']}: {real:.3f}, predicted {told:.3f}")
    return wrong


def pace(row: Row, seconds: float) -> float:
    return seconds / float(row["minibatches"])


def words_apart(rows: Sequence[Row], strategy: str) -> dict[str, Any] | None:
    """Word error rate of a strategy, and its difference from one learner's in points, once all seeds are there."""
    sides: list[dict[int, Any]] = [
        {row["cell"]["seed"]: row["errors"] for row in side if row.get("errors")}
        for side in ([row for row in rows if row["cell"]["kind"] == "words"], runs(rows, strategy))
    ]
    if any(not set(SEEDS) <= side.keys() for side in sides):
        return None
    found = difference(sides[0], sides[1])
    apart = found.difference
    return {
        "one learner": found.first.percent,
        "wer": found.second.percent,
        "apart": [apart.value, apart.low, apart.high],
    }


def best(rows: Sequence[Row], strategies: Sequence[str]) -> str | None:
    """The strategy with the lowest held-out loss, mean of its seeds, so that neither speed nor test words choose it."""
    losses = {name: [row["heldout"]["loss"] for row in runs(rows, name)] for name in strategies}
    found = {name: statistics.fmean(each) for name, each in losses.items() if each}
    return min(found, key=lambda name: found[name]) if found else None


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """Figures of every run, and the differences of word error rates."""
    found: dict[str, Any] = {}
    for row in runs(rows) + runs(rows, slow=True):
        found[row["name"]] = {
            "seconds": row["seconds"],
            "speed-up": speed_up(row),
            "predicted / real - 1": errors_of_prediction(row),
            "held-out loss": row["heldout"]["loss"],
            "cpu_seconds": row["cpu_seconds"],
            "late": row["late"],
            "beside": row["beside"]["seconds"] / row["alone"],
            "others_cores": row["others_cores"],
            "scaled": row["cell"]["turns"] is not None,
        }
    strategies = list(dict.fromkeys(row["cell"]["strategy"] for row in runs(rows)))
    apart = {name: words_apart(rows, name) for name in strategies}
    wrong = wrong_pairs(rows)
    return {"runs": found, "words": {k: v for k, v in apart.items() if v}, "wrong order": wrong}


def bars_of(rows: Sequence[Row], scale: Scale) -> list[dict[str, Any]]:
    """The bars whose rows are there."""
    bars, asynchronous = [], (RANDOMISED, DELAYED, nodes(scale), FIXED)
    chosen = best(rows, asynchronous)
    if chosen is not None:
        found = statistics.fmean(speed_up(row) for row in runs(rows, chosen))
        bars.append(bar(SPEED_UP, found, LEAST, at_most=False))
    slow = [speed_up(row) for name in asynchronous for row in runs(rows, name, slow=True)]
    if slow:
        bars.append(bar(SPEED_UP_SLOW, max(slow), LEAST_SLOW, at_most=False))
    every = runs(rows) + runs(rows, slow=True)
    if every:
        largest = max(abs(error) for row in every for error in errors_of_prediction(row).values())
        bars += [bar(DIFFERENCE, largest, WITHIN), bar(ORDER, len(wrong_pairs(rows)), 0)]
    apart = None if chosen is None else words_apart(rows, chosen)
    if apart is not None:
        bars += words_bars(apart)
    return bars


def words_bars(apart: Mapping[str, Any]) -> list[dict[str, Any]]:
    _, low, high = apart["apart"]
    return [
        bar(f"{WORDS}: distance of 0 from its interval, points", max(low, -high, 0.0), 0.0),
        bar(f"{WORDS}: half of its interval, points", (high - low) / 2, HALF_WIDTH),
    ]
