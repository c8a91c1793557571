"""K-step averaging and the beginning of the linear speed-up: bounds as lines, strategies in virtual time as points.

f(w) = sum (1 - cos w_p), 64 coordinates, normal noise, as in `theory.py`; points are medians of three seeds. Draws
docs/theory-steps.png. One thread, a few minutes.

    python benchmarks/theory_steps.py

Period: 8 learners, KAVG(K), K = 1 to 32, 256 steps of each learner (equal samples), and the steps that fit in a time if
an average takes as long as four steps. Threshold: the fewest gradients, of powers of 2, from which on the gradient norm
of L learners is at most 1.1 times that of one learner after as many gradients, each at the best rate of the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib import pyplot as plt

from measure import bar, close
from murmur.core.mixing import Mixing, contraction, randomized_ring, ring
from murmur.strategies import ADPSGD, KAVG
from murmur_papers.theory.convergence import (
    DecentralisedLearners,
    best_period,
    best_rate,
    largest_period_rate,
    period_bound,
    rounds_for_speedup,
    steps_in,
)
from theory import MOST, PROBLEM, P, norm, ticks

KIND = "bar"
LEARNERS, PERIODS, STEPS, RATE = 8, (1, 2, 4, 8, 16, 32), 256, 0.02
AVERAGE_STEPS = 4.0  # seconds of an average over those of a step
SIZES, COUNTS, NEAR = (2, 4, 8, 16), tuple(2**e for e in range(6, 15)), 1.1


def periods() -> dict[str, Any]:
    """Norms and bounds by K, at equal samples and in equal time."""
    seconds = STEPS * (1 + AVERAGE_STEPS)  # a step takes one second; with K = 1 there is time for STEPS
    found: dict[str, Any] = {"best by the bound": best_period(PROBLEM, LEARNERS, RATE, seconds, AVERAGE_STEPS)}
    for name, steps_of in {
        "equal samples": lambda _: STEPS,
        "equal time": lambda K: round(steps_in(seconds, K, 1.0, AVERAGE_STEPS)),
    }.items():
        steps: Sequence[int] = [steps_of(K) for K in PERIODS]  # type: ignore[no-untyped-call]
        found[name] = {
            "steps": steps,
            "norms": [norm(KAVG(K), LEARNERS, LEARNERS * T, RATE).middle for K, T in zip(PERIODS, steps, strict=True)],
            "bounds": [period_bound(PROBLEM, LEARNERS, K, T, RATE) / P for K, T in zip(PERIODS, steps, strict=True)],
        }
    return found


def threshold(mixing: Mixing, learners: int, alone: Callable[[int], float]) -> dict[str, Any]:
    """Measured number of gradients from which the speed-up is linear (None: later than the last), and ours."""
    ratios = [
        norm(ADPSGD(mixing), learners, N, min(MOST, best_rate(PROBLEM, learners, N / learners))).middle / alone(N)
        for N in COUNTS
    ]
    reached = next((N for k, N in enumerate(COUNTS) if max(ratios[k:]) <= NEAR), None)
    group = DecentralisedLearners(learners, contraction(mixing, learners, 100))
    return {
        "measured": reached,
        "ratio at the end": ratios[-1],
        "ours": learners * rounds_for_speedup(PROBLEM, group),
    }


def thresholds() -> dict[str, dict[int, dict[str, Any]]]:
    """Thresholds by mixing and learners."""
    one = {N: norm(ADPSGD(ring), 1, N, min(MOST, best_rate(PROBLEM, 1, N))).middle for N in COUNTS}
    return {m.__name__: {L: threshold(m, L, one.__getitem__) for L in SIZES} for m in (ring, randomized_ring)}


def draw(by_period: dict[str, Any], by_size: dict[str, dict[int, dict[str, Any]]]) -> None:
    """Write the picture."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for colour, name in (("C0", "equal samples"), ("C1", "equal time")):
        left.loglog(PERIODS, by_period[name]["norms"], f"{colour}o-", ms=4, lw=0.8, label=name)
        left.loglog(PERIODS, by_period[name]["bounds"], f"{colour}--", label=f"bound, {name}")
    left.set(xlabel="K", ylabel="mean |grad f|^2 a coordinate", title="8 learners, K local steps")
    ticks(left, PERIODS)
    for colour, (name, rows) in zip(("C0", "C1"), by_size.items(), strict=True):
        label = name.replace("_", " ")
        right.loglog(
            SIZES, [rows[L]["measured"] or math.nan for L in SIZES], f"{colour}o-", ms=4, label=f"{label}, measured"
        )
        right.loglog(SIZES, [rows[L]["ours"] for L in SIZES], f"{colour}--", label="our bound")
    right.set(xlabel="learners", ylabel="gradients", title="from here on the speed-up is linear")
    ticks(right, SIZES)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.savefig(Path(__file__).parents[1] / "docs" / "theory-steps.png", dpi=100)
    plt.close(figure)


def main() -> None:
    """Measure, draw, write the record."""
    torch.set_num_threads(1)
    matplotlib.use("agg")
    by_period, by_size = periods(), thresholds()
    draw(by_period, by_size)
    samples, time = by_period["equal samples"], by_period["equal time"]
    over = [n / b for part in (samples, time) for n, b in zip(part["norms"], part["bounds"], strict=True)]
    best = PERIODS[min(range(len(PERIODS)), key=lambda k: time["norms"][k])]
    measured = [(row["measured"] or COUNTS[-1]) / row["ours"] for rows in by_size.values() for row in rows.values()]
    bars = [
        bar("largest measured norm over its bound", max(over), 1.0),
        bar(
            "equal samples: norm with K = 32 over that with K = 1",
            samples["norms"][-1] / samples["norms"][0],
            1.0,
            False,
        ),
        bar("equal time: K of the lowest norm", best, 2.0, at_most=False),
        bar("equal time: norm with that K over that with K = 1", min(time["norms"]) / time["norms"][0], 0.9),
        bar("measured threshold, or the last number tried, over that of our bound, largest", max(measured), 1.0),
    ]
    allowed = {K: largest_period_rate(PROBLEM, K) for K in PERIODS}
    close("theory_steps", {"periods": by_period, "thresholds": by_size, "largest rates": allowed}, bars)


if __name__ == "__main__":
    main()
