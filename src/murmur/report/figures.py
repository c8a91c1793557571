"""Figures of a report: the progress of training, the effects of averaging, and the time and partners of learners."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from murmur.core.counted import counted
from murmur.core.mixing import ALL, Mixing, contraction, matrix
from murmur.report.about import legend_suffix
from murmur.report.drawn import (
    BAR_INCHES,
    COLOURS,
    GREY,
    GRID,
    HEIGHT_INCHES,
    INK,
    Figure,
    Table,
    bars,
    colour_of,
    dash_of,
    drawn,
    legend_above,
    short,
    spaced,
)
from murmur.report.read import ReportError, Run
from murmur.report.records import KINDS
from murmur.report.timeline import run_timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACCURACIES = ("frame accuracy", "accuracy")
UNITS = (("hours", 3600.0, 2.0), ("minutes", 60.0, 2.0), ("seconds", 1.0, 0.0))  # used from this many of them on
STALENESS = "How often the weights changed between the beginning of a gradient and its step."
MOST_IN_LEGEND = 6
MOST_NUMBERS = 60  # of a curve


def learning(runs: Sequence[Run]) -> list[Figure]:
    made = [error_rates(runs), heldout(runs, "samples"), heldout(runs, "seconds"), training(runs), accuracy(runs)]
    return present([*made, rates(runs)])


def averaging(runs: Sequence[Run]) -> list[Figure]:
    return present([consensus(runs), staleness(runs)])


def present(made: Iterable[Figure | None]) -> list[Figure]:
    return [drawing for drawing in made if drawing is not None]


def error_rates(runs: Sequence[Run]) -> Figure | None:
    found = [(run.headline, place) for place, run in enumerate(runs) if run.headline]
    if not found:
        return None
    shown = sorted(found, key=lambda pair: pair[0].percent)

    def draw(axes: Axes) -> None:
        for row, (headline, place) in enumerate(shown):
            if headline.low is not None and headline.high is not None:
                axes.plot(
                    [headline.low, headline.high], [row, row], color=GREY, linewidth=6, gid=f"run{place}-interval"
                )
            axes.plot([headline.percent], [row], "o", color=colour_of(place), gid=f"run{place}-rate")
        axes.set_yticks(range(len(shown)), [short(runs[place].name) for _, place in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_xlabel("word error rate in %")

    words = "; ".join(f"{runs[place].name} {headline.percent:.2f} %" for headline, place in shown)
    svg = drawn("Word error rate", words, draw, 0.9 + BAR_INCHES * len(shown))
    spread = any(headline.low is not None for headline, _ in shown)
    return Figure("Word error rate", svg, words, "Grey bars: 95 % intervals." if spread else "")


def heldout(runs: Sequence[Run], against: str) -> Figure | None:
    """Held-out log-probability of all runs against "samples" or "seconds"."""
    per, unit_of_time, virtual = time_axis(runs)
    if against == "samples":
        per = 1.0
    curves = [
        [(getattr(e, against) / per, y) for e in run.records.evaluations if (y := e.logprob) is not None]
        for run in runs
    ]
    per_frame = any("logprob" in e.figures for run in runs for e in run.records.evaluations)
    unit = "frame" if per_frame else "sample"
    what = f"{unit}s" if against == "samples" else f"{virtual}{unit_of_time} of training"
    shown = what if against == "samples" else f"{virtual}{unit_of_time}"
    title = f"Held-out log-probability per {unit} against {shown}"
    return curve_drawing(title, (what, f"nats per {unit}"), runs, curves)


def training(runs: Sequence[Run]) -> Figure | None:
    curves = [[(samples, loss) for samples, _, loss in run.records.training_losses] for run in runs]
    note = "Each point is the mean over the steps of all learners in a stretch of samples."
    return curve_drawing("Training loss", ("samples", "mean per sample"), runs, curves, note)


def time_axis(runs: Sequence[Run]) -> tuple[float, str, str]:
    """Seconds in a unit of the time axis, the unit, and "virtual " if all runs are simulated."""
    longest = max((run.records.last_seconds for run in runs), default=0.0)
    virtual = bool(runs) and all(run.simulated for run in runs)
    unit, per = next((unit, per) for unit, per, least in UNITS if longest >= per * least)
    return per, unit, "virtual " if virtual else ""


def legend(run: Run, runs: Sequence[Run]) -> str:
    """A run's name, with a remark that its seconds are virtual if those of other runs are not."""
    return f"{run.name} (virtual)" if run.simulated and not all(r.simulated for r in runs) else run.name


def consensus(runs: Sequence[Run]) -> Figure | None:
    curves = [
        [(e.samples, e.consensus_distance) for e in run.records.evaluations if e.consensus_distance is not None]
        for run in runs
    ]
    if not any(y > 0 for points in curves for _, y in points):
        return None
    title = "Distance of the learners from the consensus"
    return curve_drawing(title, ("samples", "root mean square"), runs, curves)


def accuracy(runs: Sequence[Run]) -> Figure | None:
    name = next((a for a in ACCURACIES if any(a in e.figures for r in runs for e in r.records.evaluations)), None)
    if name is None:
        return None
    curves = [
        [(e.samples, 100 * e.figures[name]) for e in run.records.evaluations if name in e.figures] for run in runs
    ]
    return curve_drawing(f"Held-out {name}", ("frames" if name == "frame accuracy" else "samples", "%"), runs, curves)


def rates(runs: Sequence[Run]) -> Figure | None:
    curves = [run.records.rates for run in runs]
    if len({rate for points in curves for _, rate in points}) < 2:
        return None
    return curve_drawing("Learning rate", ("samples", ""), runs, [_thin(points) for points in curves])


def staleness(runs: Sequence[Run]) -> Figure | None:
    counted = [run.records.staleness_counts for run in runs]
    most = max((max(counts, default=0) for counts in counted), default=0)
    if most == 0:
        return None
    shown = [place for place, counts in enumerate(counted) if max(counts, default=0) > 0]
    steps = sorted({step for place in shown for step in counted[place]})
    thick = 0.8 / len(shown)

    def draw(axes: Axes) -> None:
        for row, place in enumerate(shown):
            counts, total = counted[place], sum(counted[place].values())
            at = [step + (row - (len(shown) - 1) / 2) * thick for step in counts]
            boxes = axes.bar(at, [100 * c / total for c in counts.values()], thick, color=colour_of(place))
            for box, (step, count) in zip(boxes, counts.items(), strict=True):
                box.set_gid(f"tip:staleness {step}: {count} gradients")
            boxes.patches[0].set_label(short(legend(runs[place], runs)) + legend_suffix(runs[place], runs))
        axes.set(xlabel="changes of the weights", ylabel="% of gradients")
        axes.locator_params(axis="x", integer=True)
        if 1 < len(shown) <= MOST_IN_LEGEND:
            legend_above(axes)

    words = "; ".join(
        f"{runs[p].name} mean {sum(s * c for s, c in counted[p].items()) / sum(counted[p].values()):.2f}" for p in shown
    )
    rows = tuple((str(step), *(str(counted[place].get(step, 0)) for place in shown)) for step in steps)
    table: Table = (("staleness", *(f"gradients of {runs[place].name}" for place in shown)), rows)
    title = "Staleness of gradients"
    return Figure(title, drawn(title, words, draw, HEIGHT_INCHES), words, f"{STALENESS} {words}.", table)


Points = Sequence[tuple[float, float]]


def curve_drawing(
    title: str, axis: tuple[str, str], runs: Sequence[Run], curves: Sequence[Points], note: str = ""
) -> Figure | None:
    """Curves of runs against a numeric axis; None if no run has a point.

    Args:
        axis: labels of x and y.
        curves: points of each run in turn.
    """
    x, y = axis
    series = _series(runs, curves)
    if not series:
        return None

    def draw(axes: Axes) -> None:
        for each in series:
            run = each["run"]
            axes.plot(
                each["x"],
                each["y"],
                label=short(each["name"]) + legend_suffix(runs[run], runs),
                color=colour_of(run),
                linestyle=dash_of(run),
                marker="o" if len(each["x"]) <= 40 else "",
                markersize=3,
                gid=f"run{run}-curve",
            )
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(color=GRID, linewidth=0.6)
        if len(series) <= MOST_IN_LEGEND:
            legend_above(axes)

    words = "; ".join(f"{each['name']} ends at {each['y'][-1]:.4g} {y}".rstrip() for each in series)
    svg = drawn(title, words, draw, HEIGHT_INCHES)
    shown = ((each["name"], _ends(curves[each["run"]])) for each in series)
    rows = [(name, f"{px:.6g}", f"{py:.6g}") for name, points in shown for px, py in points]
    data = {"x": x, "y": y, "series": series}
    return Figure(title, svg, words, note, (("run", x, y or title.lower()), tuple(rows)), data)


def _series(runs: Sequence[Run], curves: Sequence[Points]) -> list[dict[str, Any]]:
    return [
        {"run": place, "name": legend(runs[place], runs), "x": [px for px, _ in points], "y": [py for _, py in points]}
        for place, points in enumerate(curves)
        if points
    ]


def _thin(points: Points) -> Points:
    step = max(1, len(points) // 200)
    return [*points[:-1:step], *points[-1:]]


def _ends(points: Points) -> Points:
    """All points of a short curve; the same number of a long one, evenly spaced."""
    if len(points) <= MOST_NUMBERS:
        return points
    return [points[place * (len(points) - 1) // (MOST_NUMBERS - 1)] for place in range(MOST_NUMBERS)]


MOST_TIMELINES = 6
ROUNDS = 16  # of averaging shown in a graph
MOST_NODES, MOST_CONTRACTED = 128, 64


def speed(runs: Sequence[Run]) -> list[Figure]:
    return present([speed_up(runs), spent(runs), *timelines(runs), phases(runs)])


def phases(runs: Sequence[Run]) -> Figure | None:
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
    """Seconds of each learner by activity, as text: the shares of each run, and a table."""
    found = [(run, run.records.seconds_of) for run in runs if run.records.seconds_of]
    if not found:
        return None
    told, rows = [], []
    for run, learners in found:
        sums = {kind: sum(seconds[kind] for seconds in learners.values()) for kind in KINDS}
        shares = {kind: 100 * s / (sum(sums.values()) or 1.0) for kind, s in sums.items()}
        shown = (f"{kind} {share:.0f} %" for kind, share in shares.items() if share >= 0.5)
        told.append(f"{run.name}: {', '.join(shown) or 'no time recorded'}.")
        for learner, seconds in sorted(learners.items()):
            name = f"{short(run.name)}: {learner}" if len(runs) > 1 else f"learner {learner}"
            rows.append((name, *(f"{seconds[kind]:.4g}" for kind in KINDS)))
    virtual = " (virtual seconds)" if any(run.simulated for run in runs) else ""
    words, table = " ".join(told), (("", *(f"{kind}, s" for kind in KINDS)), tuple(rows))
    return Figure(f"Time of each learner by activity{virtual}", "", words, words, table)


def timelines(runs: Sequence[Run]) -> list[Figure]:
    """Swim-lanes of the beginning of each run; empty for very many runs."""
    return present(map(timeline, runs)) if len(runs) <= MOST_TIMELINES else []


def timeline(run: Run) -> Figure | None:
    """Swim-lanes of the beginning of a run; None without a trace."""
    trace = run.folder / "trace.json"
    if not trace.is_file():
        return None
    title = f"{run.name}: timeline of the learners{' (virtual seconds)' if run.simulated else ''}"
    try:
        svg, told = run_timeline(trace, run.name)
    except ReportError as empty:
        return Figure(title, "", str(empty), f"{empty}.")
    return Figure(title, svg, told, "The command murmur timeline draws other stretches.")


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
