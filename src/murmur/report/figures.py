"""Figures of a report: the progress of training, and the effects of averaging."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from murmur.report.amounts import legend_suffix
from murmur.report.drawn import (
    BAR_INCHES,
    COLOURS,
    DASHES,
    GREY,
    GRID,
    HEIGHT_INCHES,
    Curves,
    Figure,
    Series,
    Table,
    colour_of,
    dash_of,
    drawn,
    short,
)
from murmur.report.fitting import legend_above
from murmur.report.read import Evaluation, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "DASHES", "Figure", "drawings", "heldout", "learning", "logprob"]
ACCURACIES = ("frame accuracy", "accuracy")
UNITS = (("hours", 3600.0, 2.0), ("minutes", 60.0, 2.0), ("seconds", 1.0, 0.0))  # used from this many of them on
STALENESS = "How often the weights changed between the beginning of a gradient and its step."
MOST_IN_LEGEND = 6
MOST_ROWS = 60


def drawings(runs: Sequence[Run]) -> list[Figure]:
    """All figures of this file that the runs have data for."""
    return [*learning(runs), *averaging(runs)]


def learning(runs: Sequence[Run]) -> list[Figure]:
    """Held-out and training curves."""
    made = [error_rates(runs), heldout(runs, "samples"), heldout(runs, "seconds"), training(runs), accuracy(runs)]
    return present([*made, rates(runs)])


def averaging(runs: Sequence[Run]) -> list[Figure]:
    """Distance from the consensus and staleness."""
    return present([consensus(runs), staleness(runs)])


def present(made: Iterable[Figure | None]) -> list[Figure]:
    """The figures that are not None."""
    return [drawing for drawing in made if drawing is not None]


def error_rates(runs: Sequence[Run]) -> Figure | None:
    """Word error rates with their intervals, best at the top."""
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
        [(getattr(e, against) / per, y) for e in run.records.evaluations if (y := logprob(e)) is not None]
        for run in runs
    ]
    per_frame = any("logprob" in e.figures for run in runs for e in run.records.evaluations)
    unit = "frame" if per_frame else "sample"
    what = f"{unit}s" if against == "samples" else f"{virtual}{unit_of_time} of training"
    shown = what if against == "samples" else f"{virtual}{unit_of_time}"
    title = f"Held-out log-probability per {unit} against {shown}"
    return curve_drawing(title, (what, f"nats per {unit}"), runs, curves)


def training(runs: Sequence[Run]) -> Figure | None:
    """Loss of the training minibatches."""
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
    """Distance of the learners from their mean; None if no run has it."""
    curves = [
        [(e.samples, e.consensus_distance) for e in run.records.evaluations if e.consensus_distance is not None]
        for run in runs
    ]
    if not any(y > 0 for points in curves for _, y in points):
        return None
    title = "Distance of the learners from the consensus"
    return curve_drawing(title, ("samples", "root mean square"), runs, curves)


def logprob(evaluation: Evaluation) -> float | None:
    """Held-out log-probability: as recorded, or the negative loss."""
    if "logprob" in evaluation.figures:
        return evaluation.figures["logprob"]
    loss = evaluation.figures.get("loss")
    return None if loss is None else -loss


def accuracy(runs: Sequence[Run]) -> Figure | None:
    """Held-out accuracy of all runs, in percent."""
    name = next((a for a in ACCURACIES if any(a in e.figures for r in runs for e in r.records.evaluations)), None)
    if name is None:
        return None
    curves = [
        [(e.samples, 100 * e.figures[name]) for e in run.records.evaluations if name in e.figures] for run in runs
    ]
    return curve_drawing(f"Held-out {name}", ("frames" if name == "frame accuracy" else "samples", "%"), runs, curves)


def rates(runs: Sequence[Run]) -> Figure | None:
    """Learning rates; None if all were constant."""
    curves = [run.records.rates for run in runs]
    if len({rate for points in curves for _, rate in points}) < 2:
        return None
    return curve_drawing("Learning rate", ("samples", ""), runs, [_thin(points) for points in curves])


def staleness(runs: Sequence[Run]) -> Figure | None:
    """Staleness of gradients; None if none was stale."""
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
    series = [Series(place, legend(runs[place], runs), tuple(points)) for place, points in enumerate(curves) if points]
    if not series:
        return None

    def draw(axes: Axes) -> None:
        for each in series:
            axes.plot(
                [p[0] for p in each.points],
                [p[1] for p in each.points],
                label=short(each.name) + legend_suffix(runs[each.run], runs),
                color=colour_of(each.run),
                linestyle=dash_of(each.run),
                marker="o" if len(each.points) <= 40 else "",
                markersize=3,
                gid=f"run{each.run}-curve",
            )
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(color=GRID, linewidth=0.6)
        if len(series) <= MOST_IN_LEGEND:
            legend_above(axes)

    words = "; ".join(f"{each.name} ends at {each.points[-1][1]:.4g} {y}".rstrip() for each in series)
    svg = drawn(title, words, draw, HEIGHT_INCHES)
    rows = [(each.name, f"{px:.6g}", f"{py:.6g}") for each in series for px, py in _ends(each.points)]
    return Figure(title, svg, words, note, (("run", x, y or title.lower()), tuple(rows)), Curves(x, y, tuple(series)))


def _thin(points: Points) -> Points:
    """Every n-th point, and the last."""
    step = max(1, len(points) // 200)
    return [*points[:-1:step], *points[-1:]]


def _ends(points: Points) -> Points:
    """All points of a short curve; the same number of a long one, evenly spaced."""
    if len(points) <= MOST_ROWS:
        return points
    return [points[place * (len(points) - 1) // (MOST_ROWS - 1)] for place in range(MOST_ROWS)]
