"""Figures of learners: use of their time, timelines, speed-up, and averaging partners."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from murmur.core.counted import counted
from murmur.core.mixing import ALL, Mixing, contraction, matrix
from murmur.report.drawn import (
    BAR_INCHES,
    COLOURS,
    GREY,
    GRID,
    HEIGHT_INCHES,
    INK,
    KIND_COLOURS,
    Figure,
    Table,
    bars,
    colour_of,
    drawn,
    short,
)
from murmur.report.figures import present
from murmur.report.fitting import legend_above, spaced
from murmur.report.read import KINDS, Run
from murmur.report.records import Bins

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BARS, MOST_ROWS, MOST_TIMELINES = 24, 16, 6
MOST_COLUMNS = 96  # columns of a timeline
ROUNDS = 16  # of averaging shown in a graph
MOST_NODES, MOST_CONTRACTED = 128, 64


def speed(runs: Sequence[Run]) -> list[Figure]:
    """Figures of speed and time."""
    return present([speed_up(runs), spent(runs), *timelines(runs), phases(runs)])


def phases(runs: Sequence[Run]) -> Figure | None:
    """Seconds of each phase, one bar per run."""
    runs = [run for run in runs if run.phases]
    names = list(dict.fromkeys(phase for run in runs for phase in run.phases))
    if not names:
        return None
    parts = {phase: [run.phases.get(phase, 0.0) for run in runs] for phase in names}
    colours = {phase: COLOURS[i % len(COLOURS)] for i, phase in enumerate(names)}
    return bars("Time by phase", [run.name for run in runs], parts, colours)


def speed_up(runs: Sequence[Run]) -> Figure | None:
    """Samples per second relative to the runs with the fewest learners, and the ideal line."""
    found = speed_ups(runs)
    if len({run.learners for run, _, _ in found}) < 2:
        return None

    def draw(axes: Axes) -> None:
        ends = sorted({run.learners for run, _, _ in found})
        axes.plot(ends, [n / ends[0] for n in ends], color=GREY, label="ideal", zorder=0)
        for run, _, times in found:
            place = runs.index(run)
            axes.plot(
                [run.learners], [times], "D" if run.simulated else "o", color=colour_of(place), gid=f"run{place}-speed"
            )
        axes.set(xlabel="learners", ylabel="speed-up", ylim=(0, None))
        axes.set_xticks(spaced(ends))
        axes.grid(color=GRID, linewidth=0.6)
        legend_above(axes)

    least = min(run.learners for run, _, _ in found)
    words = "; ".join(
        f"{run.name}: {times:.2f} times with {counted(run.learners, 'learner')}" for run, _, times in found
    )
    base = {bool(run.simulated): run.learners for run, _, times in reversed(found)}
    rows = tuple(
        (run.name, str(run.learners), f"{per_second:.4g}", f"{times:.2f}",
         f"{100 * times * base[bool(run.simulated)] / run.learners:.0f} %")
        for run, per_second, times in found
    )  # fmt: skip
    table: Table = (("run", "learners", "samples/s", "speed-up", "efficiency"), rows)
    note = (
        f"Samples a second against those of {counted(least, 'learner')}. Line: ideal. From the first"
        " step to the last, start-up and evaluation left out."
    )
    if any(run.simulated for run, _, _ in found):
        note += " Diamonds: virtual seconds."
    return Figure("Speed-up", drawn("Speed-up", words, draw, HEIGHT_INCHES), words, note, table)


def speed_ups(runs: Sequence[Run]) -> list[tuple[Run, float, float]]:
    """(run, samples per second, ratio to the runs of its kind with the fewest learners), fewest learners first."""
    known = [(run, run.records.samples_per_second) for run in sorted(runs, key=lambda run: run.learners)]
    found = []
    for run, per_second in known:
        alike = [(r, s) for r, s in known if s is not None and bool(r.simulated) == bool(run.simulated)]
        if per_second is not None:
            least = [s for r, s in alike if r.learners == alike[0][0].learners]
            found.append((run, per_second, per_second / (sum(least) / len(least))))
    return found


def spent(runs: Sequence[Run]) -> Figure | None:
    """Seconds of learners by activity, one bar per learner."""
    rows = [(run, learner) for run in runs for learner in sorted(run.records.seconds_of)]
    if not rows:
        return None
    if len(rows) > MOST_BARS:  # an even choice: hundreds of bars are unreadable
        rows = [rows[place * len(rows) // MOST_BARS] for place in range(MOST_BARS)]
    names = [f"{short(run.name)}: {learner}" if len(runs) > 1 else f"learner {learner}" for run, learner in rows]
    parts = {kind: [run.records.seconds_of[learner][kind] for run, learner in rows] for kind in KINDS}
    virtual = " (virtual seconds)" if any(run.simulated for run in runs) else ""
    return bars(f"Time of each learner by activity{virtual}", names, parts, KIND_COLOURS)


def timelines(runs: Sequence[Run]) -> list[Figure]:
    """Figure of each run's computing and waiting times by learner; empty for very many runs."""
    return present(map(timeline, runs)) if len(runs) <= MOST_TIMELINES else []


def timeline(run: Run) -> Figure | None:
    """One strip per learner: the shares of computing, waiting for data and others, and communicating over time."""
    known = sorted(run.records.timeline)
    if not known or run.records.last_seconds <= 0:
        return None
    shown = known if len(known) <= MOST_ROWS else [known[i * len(known) // MOST_ROWS] for i in range(MOST_ROWS)]
    began = run.records.first[1] if run.records.first else 0.0

    def draw(axes: Axes) -> None:
        for row, learner in enumerate(shown):
            starts, layers = strips(run.records.timeline[learner])
            floor = [row + 0.42] * len(starts)
            for kind, layer in zip(KINDS, layers, strict=True):
                top = [low - 0.84 * share for low, share in zip(floor, layer, strict=True)]
                if any(layer):
                    axes.fill_between(starts, floor, top, step="post", color=KIND_COLOURS[kind], linewidth=0)
                floor = top
        for kind in KINDS:
            axes.fill_between([], [], [], color=KIND_COLOURS[kind], label=kind)
        axes.set_yticks(range(len(shown)), [f"learner {learner}" for learner in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlim(0.98 * began if began > 0.5 * run.records.last_seconds else 0, run.records.last_seconds)
        axes.set_xlabel(f"{'virtual ' if run.simulated else ''}seconds of training")
        legend_above(axes)

    words = "; ".join(
        f"learner {learner}: " + ", ".join(f"{k} {s:.3g} s" for k, s in run.records.seconds_of[learner].items())
        for learner in shown
    )
    note = "Height: share of the time between two steps. Nothing is filled where a learner recorded nothing."
    title = f"{run.name}: timeline of the learners"
    return Figure(title, drawn(title, words, draw, 1.1 + BAR_INCHES * len(shown)), words, note)


def strips(bins: Bins) -> tuple[list[float], list[list[float]]]:
    """Beginnings of at most MOST_COLUMNS stretches of time, and the share of each of KINDS in each stretch."""
    items = dict(bins.items())
    together = math.ceil((max(items) / bins.width + 1) / MOST_COLUMNS) if items else 1
    width = together * bins.width
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0] * len(KINDS))
    for start, values in items.items():
        column = sums[int(start / width)]
        for place, value in enumerate(values):
            column[place] += value
    ends = range((max(sums) if sums else -1) + 2)
    full = [max(width, sum(sums[column])) if column in sums else width for column in ends]
    shares = [[sums[c][p] / full[c] if c in sums else 0.0 for c in ends] for p in range(len(KINDS))]
    return [column * width for column in ends], shares


def graphs(runs: Sequence[Run]) -> list[Figure]:
    """Averaging pairs, one figure for every mixing and number of learners among the runs."""
    made: dict[tuple[str, int], Figure] = {}
    for run in runs:
        name, nodes = mixing_of(run)
        if name in ALL and 1 < nodes <= MOST_NODES and (name, nodes) not in made:
            made[name, nodes] = graph(name, nodes)
    return list(made.values())


def mixing_of(run: Run) -> tuple[str, int]:
    """The name of a run's mixing, and its number of nodes: learners or super-learners; "" if it has none."""
    experiment = run.facts.get("experiment")
    strategy = experiment.get("strategy") if isinstance(experiment, Mapping) else None
    nodes = run.learners
    while isinstance(strategy, Mapping):
        size = strategy.get("node_size")
        if isinstance(size, int) and size > 0:
            nodes = -(-nodes // size)
        if isinstance(strategy.get("mixing"), str):
            return str(strategy["mixing"]).rpartition(".")[2], nodes
        inner: list[Any] = [value for key, value in strategy.items() if key in ("outer", "strategy", "inner")]
        strategy = inner[0] if inner else None
    return "", nodes


def graph(name: str, nodes: int) -> Figure:
    """Learners on a circle; strong lines join those that average in the first round, thin lines the others."""
    mixing: Mixing = ALL[name]
    rounds = [matrix(mixing, k, range(nodes)) for k in range(ROUNDS)]
    first = {(i, j) for i in range(nodes) for j in range(i) if rounds[0][i, j] > 0}
    later = {(i, j) for t in rounds for i in range(nodes) for j in range(i) if t[i, j] > 0} - first

    def draw(axes: Axes) -> None:
        at = [(math.sin(2 * math.pi * i / nodes), math.cos(2 * math.pi * i / nodes)) for i in range(nodes)]
        for pairs, width, colour in ((later, 0.5, GREY), (first, 1.8, colour_of(0))):
            for i, j in sorted(pairs):
                axes.plot([at[i][0], at[j][0]], [at[i][1], at[j][1]], color=colour, linewidth=width, zorder=1)
        axes.plot([x for x, _ in at], [y for _, y in at], "o", color=colour_of(1), markersize=7 if nodes <= 24 else 3)
        for i in range(0, nodes, max(1, nodes // 16)):
            axes.text(1.14 * at[i][0], 1.14 * at[i][1], str(i), ha="center", va="center", color=INK)
        axes.set(aspect="equal", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3))
        axes.set_axis_off()

    words = f"{nodes} learners, {len(first)} pairs in the first round, {len(first | later)} in {ROUNDS} rounds"
    strong = "Lines: pairs that average, the same in every round."
    if later:
        strong = f"Strong: pairs that average in the first round. Thin: in any of the first {ROUNDS}."
    note = f"{strong}{disagreement(mixing, nodes)}"
    title = f"Averaging pairs: {name}, {nodes} learners"
    return Figure(title, drawn(title, words, draw, 3.0), words, note)


def disagreement(mixing: Mixing, nodes: int) -> str:
    """Share of the learners' disagreement left after a round, in words; "" if there are too many to compute it fast."""
    if nodes > MOST_CONTRACTED:
        return ""
    left = contraction(mixing, nodes)
    share = f"{100 * left:.3g} %" if left > 1e-9 else "nothing"
    return f" A round leaves {share} of the learners' disagreement, the mean of |w_i - mean w|\u00b2, at most."
