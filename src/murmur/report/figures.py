"""Figures of a report as inline SVG: every one scales with its column, carries a title for screen readers, and is drawn
in colours that people with any colour vision can tell apart (Okabe and Ito 2008), with a line style each as well.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from murmur.report.read import KINDS, Evaluation, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES: tuple[tuple[int, tuple[float, ...]], ...] = ((0, ()), (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
KIND_COLOURS = {"compute": "#0072b2", "data": "#56b4e9", "waiting": "#e69f00", "communicating": "#d55e00"}
INK, GREY = "#1b1b1b", "#b8b8b8"
WIDTH_INCHES, HEIGHT_INCHES, BAR_INCHES = 4.8, 3.1, 0.34
MOST_BARS = 24
ACCURACIES = ("frame accuracy", "accuracy")


@dataclass(frozen=True)
class Drawing:
    """An SVG element with the heading over it and what it shows in words."""

    title: str
    svg: str
    words: str


def drawings(runs: Sequence[Run]) -> list[Drawing]:
    """All figures for which the runs hold something."""
    made = (
        error_rates(runs),
        heldout(runs, "samples"),
        heldout(runs, "seconds"),
        accuracy(runs),
        phases(runs),
        spent(runs),
        consensus(runs),
        rates(runs),
        staleness(runs),
    )
    return [drawing for drawing in made if drawing is not None]


def error_rates(runs: Sequence[Run]) -> Drawing | None:
    """Word error rates, best at the top, with their intervals."""
    shown = sorted(((run.headline, run.name) for run in runs if run.headline), key=lambda pair: pair[0].percent)
    if not shown:
        return None

    def draw(axes: Axes) -> None:
        for place, (headline, name) in enumerate(shown):
            if headline.low is not None and headline.high is not None:
                axes.plot([headline.low, headline.high], [place, place], color=GREY, linewidth=6)
            axes.plot([headline.percent], [place], "o", color=COLOURS[_index(runs, name) % len(COLOURS)])
        axes.set_yticks(range(len(shown)), [name for _, name in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_xlabel("word error rate in % (grey: 95 % interval)")

    words = "; ".join(f"{name} {headline.percent:.2f} %" for headline, name in shown)
    return _drawn("Word error rate", words, draw, 0.9 + BAR_INCHES * len(shown))


def heldout(runs: Sequence[Run], against: str) -> Drawing | None:
    """Held-out log-probability against "samples" or "seconds" of all runs."""
    seconds, axis = time_axis(runs)
    per = seconds if against == "seconds" else 1.0
    curves = {
        legend(run, runs): [
            (getattr(e, against) / per, y) for e in run.records.evaluations if (y := logprob(e)) is not None
        ]
        for run in runs
    }
    per_frame = any("logprob" in e.figures for run in runs for e in run.records.evaluations)
    unit = "frame" if per_frame else "sample"
    what = f"{unit}s" if against == "samples" else axis
    shown = against if against == "samples" or per == 1.0 else axis
    return _curves(f"Held-out log-probability per {unit} against {shown}", what, f"nats per {unit}", curves)


def time_axis(runs: Sequence[Run]) -> tuple[float, str]:
    """Seconds of a unit of the time axis and its label: virtual hours where all runs are simulated."""
    if runs and all(run.simulated for run in runs):
        return 3600.0, "virtual hours"
    return 1.0, "seconds of training"


def legend(run: Run, runs: Sequence[Run]) -> str:
    """A run's name, and that its seconds are virtual where those of others are not."""
    return f"{run.name} (virtual)" if run.simulated and not all(r.simulated for r in runs) else run.name


def consensus(runs: Sequence[Run]) -> Drawing | None:
    """How far learners were from their mean, where they were."""
    per, axis = time_axis(runs)
    curves = {
        legend(run, runs): [
            (e.seconds / per, e.consensus_distance) for e in run.records.evaluations if e.consensus_distance is not None
        ]
        for run in runs
    }
    if not any(y > 0 for points in curves.values() for _, y in points):
        return None
    return _curves("Distance of the learners from the consensus", axis, "root mean square", curves)


def logprob(evaluation: Evaluation) -> float | None:
    """Held-out log-probability: as told, or the negative loss."""
    if "logprob" in evaluation.figures:
        return evaluation.figures["logprob"]
    loss = evaluation.figures.get("loss")
    return None if loss is None else -loss


def accuracy(runs: Sequence[Run]) -> Drawing | None:
    """Held-out accuracy of all runs, in percent."""
    name = next((a for a in ACCURACIES if any(a in e.figures for r in runs for e in r.records.evaluations)), None)
    if name is None:
        return None
    curves = {
        run.name: [(e.samples, 100 * e.figures[name]) for e in run.records.evaluations if name in e.figures]
        for run in runs
    }
    return _curves(f"Held-out {name}", "frames" if name == "frame accuracy" else "samples", "%", curves)


def rates(runs: Sequence[Run]) -> Drawing | None:
    """Learning rates."""
    return _curves("Learning rate", "samples", "", {run.name: run.records.rates for run in runs}, marks=False)


def phases(runs: Sequence[Run]) -> Drawing | None:
    """Seconds of each phase, a bar a run."""
    names = list(dict.fromkeys(phase for run in runs for phase in run.phases))
    if not names:
        return None
    parts = {phase: [run.phases.get(phase, 0.0) for run in runs] for phase in names}
    colours = {phase: COLOURS[i % len(COLOURS)] for i, phase in enumerate(names)}
    return _bars("Time by phase", [run.name for run in runs], parts, colours)


def spent(runs: Sequence[Run]) -> Drawing | None:
    """What learners spent their seconds on, a bar a learner."""
    rows = [(run, learner) for run in runs for learner in sorted(run.records.seconds_of)]
    if not rows:
        return None
    if len(rows) > MOST_BARS:  # an even choice: a bar for each of hundreds of learners could not be read
        rows = [rows[place * len(rows) // MOST_BARS] for place in range(MOST_BARS)]
    names = [f"{run.name}: {learner}" if len(runs) > 1 else f"learner {learner}" for run, learner in rows]
    parts = {kind: [run.records.seconds_of[learner][kind] for run, learner in rows] for kind in KINDS}
    virtual = " (virtual seconds)" if any(run.simulated for run in runs) else ""
    return _bars(f"What each learner's time went into{virtual}", names, parts, KIND_COLOURS)


def staleness(runs: Sequence[Run]) -> Drawing | None:
    """How stale gradients were, where any was."""
    shares = {}
    for run in runs:
        total = sum(sum(counts.values()) for counts in run.records.staleness.values())
        steps = sorted({s for counts in run.records.staleness.values() for s in counts})
        if steps and steps[-1] > 0:
            counted = [sum(counts[s] for counts in run.records.staleness.values()) for s in steps]
            shares[run.name] = [(float(s), 100 * c / total) for s, c in zip(steps, counted, strict=True)]
    return _curves("Staleness of gradients", "steps", "% of gradients", shares)


def _curves(
    title: str, x: str, y: str, curves: dict[str, list[tuple[float, float]]], marks: bool = True
) -> Drawing | None:
    shown = {name: points for name, points in curves.items() if points}
    if not shown:
        return None

    from matplotlib.ticker import EngFormatter  # noqa: PLC0415 - as in _drawn

    def draw(axes: Axes) -> None:
        for index, (name, points) in enumerate(curves.items()):
            if not points:
                continue
            marker = "o" if marks and len(points) <= 40 else ""
            axes.plot(
                [p[0] for p in points],
                [p[1] for p in points],
                label=name,
                color=COLOURS[index % len(COLOURS)],
                linestyle=DASHES[index % len(DASHES)],
                marker=marker,
                markersize=3,
            )
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(color="#e4e4e4", linewidth=0.6)
        thousands = EngFormatter(sep="")
        axes.xaxis.set_major_formatter(lambda x, _: thousands(x) if abs(x) >= 1000 else f"{x:g}")
        axes.legend(frameon=False)

    words = "; ".join(f"{name} ends at {points[-1][1]:.4g} {y}".rstrip() for name, points in shown.items())
    return _drawn(title, words, draw, HEIGHT_INCHES)


def _bars(title: str, names: list[str], parts: dict[str, list[float]], colours: dict[str, str]) -> Drawing:
    """Stacked horizontal bars of seconds."""

    def draw(axes: Axes) -> None:
        left = [0.0] * len(names)
        for part, seconds in parts.items():
            if not any(seconds):
                continue
            axes.barh(range(len(names)), seconds, left=left, label=part, color=colours[part], height=0.6)
            left = [a + b for a, b in zip(left, seconds, strict=True)]
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
        axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), fontsize=8)

    told = [", ".join(f"{part} {s[i]:.1f} s" for part, s in parts.items() if s[i] > 0) for i in range(len(names))]
    words = "; ".join(f"{name}: {text}" for name, text in zip(names, told, strict=True))
    return _drawn(title, words, draw, 1.3 + BAR_INCHES * len(names))


def _drawn(title: str, words: str, draw: Callable[[Axes], None], height_inches: float) -> Drawing:
    """Draw on fresh axes, without pyplot's list of open figures."""
    import matplotlib as mpl  # noqa: PLC0415 - the extra `viz` is optional, and this takes a second
    from matplotlib.figure import Figure  # noqa: PLC0415

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": title,
        "font.size": 9.5,
        "text.color": INK,
        "axes.labelcolor": INK,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", facecolor="white", metadata={"Date": None})
    return Drawing(title, inline(file.getvalue(), title, words), words)


def inline(svg: str, title: str, words: str) -> str:
    """A stand-alone SVG document as an element of a page: no prologue, no fixed size, a title and a label."""
    element = svg[svg.index("<svg") :]
    head, rest = element.split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    rest = re.sub(r"\s*<metadata>.*?</metadata>", "", rest, flags=re.DOTALL)
    rest = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", rest)  # names of groups, alike in all figures of a page
    label = escape(f"{title}. {words}", quote=True)
    return f'{head} role="img" aria-label="{label}"><title>{escape(title)}</title>{rest}'


def _index(runs: Sequence[Run], name: str) -> int:
    return [run.name for run in runs].index(name)
