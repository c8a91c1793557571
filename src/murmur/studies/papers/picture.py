"""The pictures of docs/papers.md: a paper each, word error rate over hours of the virtual cluster, a point a system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from murmur.report.page import check_installed
from murmur.report.read import ReportError
from murmur.speech.decoding.bootstrap import Interval


@dataclass(frozen=True)
class Point:
    """A system in a picture.

    Attributes:
        name: its name.
        hours: hours of the virtual cluster.
        rate: word error rate in percent, with its interval.
    """

    name: str
    hours: float
    rate: Interval


def draw(name: str, points: Sequence[Point], path: Path) -> bool:
    """Draw the systems of a study.

    Returns:
        True if there is a picture: without matplotlib there is none.
    """
    try:
        check_installed()
    except ReportError:
        return False
    import matplotlib as mpl  # noqa: PLC0415 - an optional dependency
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import LogLocator  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.4, 3.4), layout="constrained")
        axes = figure.subplots()
        for number, point in enumerate(points):
            marker = "s" if number == 0 else "^" if point.name.startswith("beyond") else "o"
            value = point.rate.value
            bars = [[value - point.rate.low], [point.rate.high - value]]
            axes.errorbar(
                [point.hours], [value], bars, fmt=marker, color=f"C{number % 10}", label=point.name, capsize=2
            )
        axes.set(xscale="log", title=name, ylabel="word error rate, %", xlabel="hours of the virtual cluster")
        axes.xaxis.set_minor_locator(LogLocator(subs=(2.0, 3.0, 5.0)))  # more would overlap
        for formatted in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            formatted(lambda hours, _: f"{hours:g}")  # 0.6 in place of 6 x 10^-1
        axes.tick_params(axis="x", which="minor", labelsize=7)
        axes.grid(alpha=0.3, which="both")
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
    return True
