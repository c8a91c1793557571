"""Theory compared with practice: closed forms and bounds as lines, the strategies in virtual time as points.

Draws the pictures of docs/theory.md. Points are medians over seeds, bars from the lowest to the highest seed. One
thread, a few minutes.

    python benchmarks/theory.py
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from measure import bar, close
from murmur.core.learner import Strategy
from murmur.core.mixing import ALL, contraction, matrix, pairwise, randomized_ring, ring
from murmur.simulation.planner.course import Course, Even, Walk, cosine, follow, quadratic
from murmur.strategies import ADPSGD, ASGD, SyncSGD
from murmur.strategies.delay_by_one import DelayByOne
from murmur.worlds.virtual.cluster import Cluster, ComputeTime, ConstantSeconds, LognormalSeconds
from murmur_papers.theory.consensus import (
    NoisyQuadratic,
    effective_cosine_rate,
    largest_mixed_step,
    largest_randomized_step,
    largest_step,
    randomized_ring_contraction,
    ring_eigenvalues,
    ring_gap,
    spectral_gap,
)
from murmur_papers.theory.convergence import (
    DecentralisedLearners,
    SmoothProblem,
    best_rate,
    bound,
    leading_term,
    rounds_for_speedup,
)

KIND = "bar"
PICTURES = Path(__file__).parents[1] / "docs"
SEEDS = 3
P = 64  # coordinates
HALVINGS = 7


@dataclass(frozen=True)
class Seen:
    """One point: the middle, lowest and highest of the seeds."""

    low: float
    middle: float
    high: float

    @classmethod
    def over_seeds(cls, value: Callable[[int], float]) -> Seen:
        values = sorted(value(seed) for seed in range(SEEDS))
        return cls(values[0], statistics.median(values), values[-1])


def points(axes: Axes, xs: Sequence[float], seen: Sequence[Seen], label: str, **how: Any) -> None:
    ys = [s.middle for s in seen]
    reach = [[s.middle - s.low for s in seen], [s.high - s.middle for s in seen]]
    axes.errorbar(xs, ys, yerr=reach, fmt="o", ms=4, capsize=2, label=label, **how)


def train(strategy: Strategy, learners: int, walk: Walk, gradients: int, compute: ComputeTime | None = None) -> Course:
    return follow(strategy, Cluster(learners=learners, compute=compute or Even()), walk, gradients)


def later(values: Sequence[float]) -> float:
    return statistics.fmean(values[len(values) // 2 :])


def picture(panels: int) -> tuple[Any, Any]:
    return plt.subplots(1, panels, figsize=(4.3 * panels, 3.5), constrained_layout=True)


def ticks(axes: Axes, at: Sequence[float]) -> None:
    """Use only these ticks along a logarithmic axis, as plain numbers."""
    axes.set_xticks(at, [f"{x:g}" for x in at])
    axes.set_xticks([], minor=True)


def keep(figure: Any, name: str) -> None:
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        if axes.get_legend() is None:
            axes.legend(fontsize=6)
    figure.savefig(PICTURES / f"theory-{name}.png", dpi=90)
    plt.close(figure)


def gaps(axes: Axes) -> None:
    """Closed forms of the gap and of the contraction against eigenvalues."""
    sizes = [4, 8, 16, 32, 64]
    axes.loglog(sizes, [ring_gap(L) for L in sizes], "C0-", label="fixed ring, 1 - max |lambda|")
    axes.loglog(sizes, [1 - randomized_ring_contraction(L) for L in sizes], "C1-", label="randomised ring, 1 - rho")
    axes.loglog(sizes, [spectral_gap(matrix(ring, 0, range(L))) for L in sizes], "C0o", ms=4)
    for color, name in (("C1", "randomized_ring"), ("C2", "pairwise"), ("C3", "exponential"), ("C4", "random_pairs")):
        marks = [1 - contraction(ALL[name], L, 200) for L in sizes]
        axes.loglog(sizes, marks, f"{color}o", ms=4, label=None if name == "randomized_ring" else f"{name}, 1 - rho")
    axes.set(xlabel="learners", title="what a round of averaging takes away")
    ticks(axes, sizes)


def distances(by_size: Axes, by_rate: Axes) -> dict[str, float]:
    """Distance to the consensus at rest, on a quadratic of curvature 1; found / closed form."""
    ratios: dict[str, float] = {}

    def at_rest(strategy: Strategy, L: int, rate: float, compute: ComputeTime | None = None) -> Seen:
        landscape = quadratic(torch.zeros(P), 1.0, 1.0)
        return Seen.over_seeds(
            lambda seed: later(train(strategy, L, Walk(landscape, rate, seed), 160 * L, compute).distance_square) / P
        )

    kinds: dict[str, tuple[Strategy, Callable[[NoisyQuadratic, int], float]]] = {
        "ring": (ADPSGD(ring), lambda q, L: q.distance_square(ring_eigenvalues(L))),
        "randomised ring": (ADPSGD(randomized_ring), NoisyQuadratic.randomized_distance_square),
        "pairwise": (ADPSGD(pairwise), lambda q, L: q.distance_square_through(pairwise, L, 600)),
        "delay by one": (DelayByOne(), lambda q, L: q.distance_square([1.0] + [0.0] * (L - 1))),
    }

    def theory(kind: str, L: int, rate: float) -> float:
        return kinds[kind][1](NoisyQuadratic(1.0, 1.0, rate), L)

    sizes, rates = [4, 6, 8, 16, 32], [0.05, 0.1, 0.2, 0.4, 0.6]
    for color, (kind, (strategy, _)) in zip(["C0", "C1", "C2", "C3"], kinds.items(), strict=True):
        for axes, cells in ((by_size, [(L, 0.1) for L in sizes]), (by_rate, [(16, rate) for rate in rates])):
            xs = [L if axes is by_size else rate for L, rate in cells]
            seen = [at_rest(strategy, L, rate) for L, rate in cells]
            axes.loglog(xs, [theory(kind, L, rate) for L, rate in cells], f"{color}-")
            points(axes, xs, seen, kind, color=color)
            ratios |= {
                f"{kind}, L={L}, alpha={rate}": s.middle / theory(kind, L, rate)
                for (L, rate), s in zip(cells, seen, strict=True)
            }
    jittered = [at_rest(ADPSGD(ring), L, 0.1, LognormalSeconds(0.1, 0.2)) for L in sizes]
    points(by_size, sizes, jittered, "ring, uneven speeds", color="C0", mfc="white")
    ratios |= {f"uneven ring, L={L}": s.middle / theory("ring", L, 0.1) for L, s in zip(sizes, jittered, strict=True)}
    by_size.set(xlabel="learners", ylabel="D^2 a coordinate", title="distance at rest, alpha = 0.1")
    by_rate.set(xlabel="alpha h", title="the same, 16 learners")
    ticks(by_size, sizes)
    ticks(by_rate, rates)
    return ratios


def survives(strategy: Strategy, L: int, rate: float) -> bool:
    course = train(strategy, L, Walk(quadratic(torch.zeros(P), 1.0, 1.0), rate), 240 * L)
    squares = [a + b for a, b in zip(course.consensus_square, course.distance_square, strict=True)]
    return sum(squares[-20:]) < 10 * sum(squares[80:100])


def found_limit(strategy: Strategy, L: int) -> float:
    """The largest alpha h at which nothing grows, found by bisection."""
    low, high = 0.0, 3.0
    for _ in range(HALVINGS + 2):
        middle = (low + high) / 2
        low, high = (middle, high) if survives(strategy, L, middle) else (low, middle)
    return (low + high) / 2


def random_limit(L: int) -> float:
    return largest_randomized_step(randomized_ring_contraction(L))


def stability(by_delay: Axes, by_size: Axes) -> dict[str, float]:
    """The largest rates: found / theory."""
    ratios: dict[str, float] = {}
    delays = list(range(16))
    by_delay.plot(delays, [largest_step(d) for d in delays], "C0-", label="2 sin(pi / (2 (2 tau + 1)))")
    served = {workers - 1: found_limit(ASGD(), workers + 1) for workers in (2, 3, 4, 6, 8, 12, 16)}
    by_delay.plot(list(served), list(served.values()), "C0o", ms=4, label="server of tau + 1 learners")
    alone = found_limit(SyncSGD(), 2)
    by_delay.plot([0], [alone], "C1s", ms=5, label="SyncSGD")
    ratios |= {f"server, tau={d}": v / largest_step(d) for d, v in served.items()}
    ratios["SyncSGD"] = alone / 2
    sizes = [3, 4, 5, 7, 8, 16]
    forms: list[tuple[str, str, Strategy, Callable[[int], float]]] = [
        ("C0", "fixed ring", ADPSGD(ring), lambda L: largest_mixed_step(ring_eigenvalues(L))),
        ("C1", "randomised ring, in mean square", ADPSGD(randomized_ring), random_limit),
        ("C3", "delay by one", DelayByOne(), lambda L: largest_mixed_step([1.0] + [0.0] * (L - 1))),
    ]
    for color, name, strategy, theory in forms:
        wanted, found = [theory(L) for L in sizes], [found_limit(strategy, L) for L in sizes]
        by_size.plot(sizes, wanted, f"{color}-", label=name)
        by_size.plot(sizes, found, f"{color}o", ms=4)
        ratios |= {f"{name}, L={L}": f / w for L, f, w in zip(sizes, found, wanted, strict=True)}
    by_delay.set(xlabel="staleness tau, steps", ylabel="largest alpha h", yscale="log", title="stale gradients")
    by_size.set(xlabel="learners", ylim=(0, 2), title="mixing, gradients of one's own weights")
    return ratios


START = (torch.rand(P, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 - 1) * math.pi
HILLS = cosine(START, 1.0)
PROBLEM = SmoothProblem(1.0, HILLS.variance, float(HILLS.loss(START)))
MOST = 0.5  # largest rate in practice; for few rounds `best_rate` exceeds the range of the bound


def norm(strategy: Strategy, L: int, N: int, rate: float, compute: ComputeTime | None = None) -> Seen:
    """Mean over the rounds of |grad f(w-bar)|^2, per coordinate."""
    return Seen.over_seeds(
        lambda seed: statistics.fmean(train(strategy, L, Walk(HILLS, rate, seed), N, compute).gradient_square) / P
    )


def draw_bounds(axes: Axes, xs: Sequence[float], values: Sequence[float], style: str, label: str) -> list[float | None]:
    """Draw a line where the bound is finite."""
    inside = [(x, value) for x, value in zip(xs, values, strict=True) if math.isfinite(value)]
    if inside:
        axes.loglog(*zip(*inside, strict=True), style, lw=0.8, label=label)
    return [value if math.isfinite(value) else None for value in values]


def convergence(by_gradients: Axes, by_trouble: Axes) -> dict[str, Any]:
    """Slope, speed-up in samples, cost of stragglers and of small gaps."""
    counts, sizes = [256, 1024, 4096], [1, 2, 4, 8, 16]
    by_gradients.loglog(counts, [leading_term(PROBLEM, N) / P for N in counts], "k-", label="leading term of the bound")
    found: dict[str, Any] = {"norms": {}, "bounds": {}, "enough_rounds": {}, "slopes": {}}
    for i, L in enumerate(sizes):
        rates = [min(MOST, best_rate(PROBLEM, L, N / L)) for N in counts]
        seen = [norm(ADPSGD(randomized_ring), L, N, rate) for N, rate in zip(counts, rates, strict=True)]
        points(by_gradients, [N * (0.92 + 0.04 * i) for N in counts], seen, f"{L} learners", color=f"C{i}")
        averager = DecentralisedLearners(L, contraction(randomized_ring, L, 100) if L > 1 else 0.0)
        limits = [bound(PROBLEM, averager, N / L, rate) / P for N, rate in zip(counts, rates, strict=True)]
        found["bounds"][L] = draw_bounds(by_gradients, counts, limits, f"C{i}--", f"bound, {L}")
        found["norms"][L] = [s.middle for s in seen]
        found["enough_rounds"][L] = rounds_for_speedup(PROBLEM, averager)
        found["slopes"][L] = math.log(seen[-1].middle / seen[-2].middle) / math.log(counts[-1] / counts[-2])
    by_gradients.set(
        ylim=(5e-3, 0.4), xlabel="gradients of all learners", ylabel="mean |grad f|^2 a coordinate", title="best rates"
    )
    ticks(by_gradients, counts)
    by_gradients.legend(fontsize=6, loc="lower left", ncols=2)
    return found | {"trouble": trouble(by_trouble)}


def trouble(axes: Axes) -> dict[str, Sequence[float | None]]:
    """Cost of one slow learner of eight, by its slowness, with the bound for tau rounds of staleness."""
    slownesses, L, N = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0], 8, 2048
    speeds: list[ComputeTime] = [Even(), *(ConstantSeconds(0.1, {3: slowness}) for slowness in slownesses[1:])]
    found: dict[str, Sequence[float | None]] = {}
    for color, mixing, rate in (("C0", ring, 0.02), ("C1", ring, 0.2), ("C2", randomized_ring, 0.2)):
        name = f"{mixing.__name__}, alpha = {rate:g}"
        seen = [norm(ADPSGD(mixing), L, N, rate, speed) for speed in speeds]
        points(axes, slownesses, seen, name, color=color)
        flocks = [DecentralisedLearners(L, contraction(mixing, L, 100), slowness - 1) for slowness in slownesses]
        limits = [bound(PROBLEM, averager, N / L, rate) / P for averager in flocks]
        found[f"bound, {name}"] = draw_bounds(axes, slownesses, limits, f"{color}--", f"bound, {name}")
        found[name] = [s.middle for s in seen]
    axes.set(xlabel="slowness of one of 8 learners", title=f"a straggler, {N} gradients", xscale="log", yscale="log")
    ticks(axes, slownesses)
    axes.legend(fontsize=6, loc="center", bbox_to_anchor=(0.5, 0.3))
    return found


def effective(axes: Axes) -> dict[str, float]:
    """The effective rate against the spread of the learners, on cosines."""
    rate, L, coordinates = 0.5, 16, 512
    spreads, seen = [], []
    for noise in (0.4, 0.8, 1.2, 1.6, 2.0, 2.5):
        landscape = cosine(torch.full((coordinates,), 0.5, dtype=torch.float64), noise)
        courses = [train(ADPSGD(ring), L, Walk(landscape, rate, seed), 50 * L) for seed in range(SEEDS)]
        spreads.append(statistics.fmean(later(c.distance_square) / coordinates for c in courses))
        shares = sorted(later(c.agreement) for c in courses)
        seen.append(Seen(shares[0], statistics.median(shares), shares[-1]))
    line = [0.02 * i * max(spreads) / 0.98 for i in range(50)]
    axes.plot(line, [effective_cosine_rate(1.0, s) for s in line], "C0-", label="exp(-s^2 / 2)")
    points(axes, spreads, seen, "ADPSGD over the ring of 16", color="C0")
    axes.set(xlabel="s^2, spread of the learners", ylabel="alpha_e / alpha", title="the rate the consensus sees")
    return {f"{x:.2f}": s.middle / effective_cosine_rate(1.0, x) for x, s in zip(spreads, seen, strict=True)}


def worst(ratios: Mapping[str, float]) -> float:
    return max(abs(value - 1) for value in ratios.values())


def main() -> None:
    torch.set_num_threads(1)
    matplotlib.use("Agg")
    figure, (left, middle, right) = picture(3)
    gaps(left)
    distance = distances(middle, right)
    keep(figure, "consensus")
    figure, (left, right) = picture(2)
    limits = stability(left, right)
    keep(figure, "stability")
    figure, (left, middle, right) = picture(3)
    course = convergence(left, middle)
    rates = effective(right)
    keep(figure, "convergence")
    report(distance, limits, course, rates)


def report(
    distance: Mapping[str, float], limits: Mapping[str, float], course: Mapping[str, Any], rates: Mapping[str, float]
) -> None:
    even = {name: ratio for name, ratio in distance.items() if not name.startswith("uneven")}
    exact = {name: ratio for name, ratio in limits.items() if not name.startswith("randomised")}
    random = [ratio for name, ratio in limits.items() if name.startswith("randomised")]
    uneven = [ratio for name, ratio in distance.items() if name.startswith("uneven")]
    norms, steepest = course["norms"], max(abs(s + 0.5) for s in course["slopes"].values())
    near = {spread: ratio for spread, ratio in rates.items() if float(spread) < 1}
    kept = [b is None or n <= b for L in norms for n, b in zip(norms[L], course["bounds"][L], strict=True)]
    speed = norms[16][-1] / norms[1][-1]
    bars = [
        bar("distance at rest, equal speeds: largest |found / closed form - 1|", worst(even), 0.06),
        bar("distance at rest, uneven speeds: largest found / closed form", max(uneven), 1.0),
        bar("largest stable rate, fixed mixing and delays: largest |found / theory - 1|", worst(exact), 0.03),
        bar("largest stable rate, randomised ring: least found / limit of the mean square", min(random), 0.99, False),
        bar("slope of the gradient norm in log-log: largest |slope + 1/2|, 1 to 16 learners", steepest, 0.15),
        bar("gradient norm after 4096 gradients, 16 learners / one", speed, 1.15),
        bar("share of points under the bound", statistics.fmean(kept), 1.0, at_most=False),
        bar("effective rate, s^2 < 1: largest |found / exp(-s^2 / 2) - 1|", worst(near), 0.05),
    ]
    close("theory", {"distance": distance, "limits": limits, "convergence": course, "effective": rates}, bars)


if __name__ == "__main__":
    main()
