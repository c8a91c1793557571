"""The pictures of docs/papers.md: a paper each, word error rate over hours of the virtual cluster, a point a system."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from murmur.report.page import check_installed
from murmur.report.read import ReportError

Point = tuple[str, float, float]  # name, hours, word error rate in percent


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

    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.4, 3.4), layout="constrained")
        axes = figure.subplots()
        for number, (system, hours, rate) in enumerate(points):
            marker = "s" if number == 0 else "^" if system.startswith("beyond") else "o"
            axes.plot([hours], [rate], marker, color=f"C{number % 10}", label=system)
        axes.set(xscale="log", title=name, ylabel="word error rate, %", xlabel="hours of the virtual cluster")
        for formatted in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            formatted(lambda hours, _: f"{hours:g}")  # 0.6 in place of 6 x 10^-1
        axes.tick_params(axis="x", which="minor", labelsize=7)
        axes.grid(alpha=0.3, which="both")
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
    return True
