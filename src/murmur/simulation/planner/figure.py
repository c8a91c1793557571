"""Picture of the speed-up against the number of learners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from murmur.simulation.planner.table import PlanRow


def draw_scaling(curves: Mapping[str, Sequence[PlanRow]], path: Path, title: str) -> None:
    """Write a picture of the speed-up of several strategies; the suffix of `path` sets its format.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib.figure  # noqa: PLC0415 - an optional dependency

    figure = matplotlib.figure.Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    for name, rows in curves.items():
        axes.plot([row.learners for row in rows], [row.speed_up for row in rows], marker="o", markersize=3, label=name)
    most = max((row.learners for rows in curves.values() for row in rows), default=1)
    axes.plot([1, most], [1, most], color="gray", linewidth=0.8, linestyle=":", label="ideal")
    axes.set(xscale="log", yscale="log", xlabel="learners", ylabel="speed-up over one learner", title=title)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path)
