"""Axes fitted to their picture: labels stay within its edges, and no text covers another."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from murmur.report.ticks import tick_texts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.ticker import Formatter
    from matplotlib.transforms import Bbox

ROUNDS = 12  # of drawing and shrinking
GAP_PIXELS = 5.0  # between two texts of an axis
NARROWEST_LABEL = 8  # characters per line
MOST_COLUMNS = 4  # of a legend


def fit(axes: Axes) -> None:
    """Write the ticks of number axes, and shorten lines and thin out ticks until nothing is cut off or covered.

    Names at fixed places, such as those of bars, stay unchanged.
    """
    import matplotlib.ticker  # noqa: PLC0415 - the extra `viz` is optional, and this takes a second

    both: tuple[tuple[Axis, Literal[0, 1]], ...] = ((axes.xaxis, 0), (axes.yaxis, 1))
    for axis, _ in both:
        if isinstance(axis.get_major_formatter(), matplotlib.ticker.ScalarFormatter):
            axis.set_major_formatter(_formatter())
    figure = axes.get_figure(root=True)
    assert figure is not None
    for _ in range(ROUNDS):
        figure.draw_without_rendering()
        changed = [_wrapped(axes, axis, side) or _thinned(axis, side) for axis, side in both]
        if not any(changed):
            return


def legend_above(axes: Axes) -> None:
    """Put a legend over the axes, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    width = axes.figure.get_window_extent().width
    for columns in range(MOST_COLUMNS, 0, -1):
        legend = axes.figure.legend(
            handles,
            labels,
            loc="outside upper left",
            ncols=columns,
            frameon=False,
            fontsize=9,
            columnspacing=0.8,
            handlelength=1.5,
        )
        if columns == 1 or legend.get_window_extent().width <= width:
            return
        legend.remove()


def spaced(places: Sequence[float], share: float = 0.09) -> list[float]:
    """Places for ticks, starting from the last one, none closer to another than this share of their range."""
    kept: list[float] = []
    least = share * (max(places) - min(places))
    for place in sorted(places, reverse=True):
        if not kept or kept[-1] - place >= least:
            kept.append(place)
    return kept[::-1]


def _formatter() -> Formatter:
    from matplotlib.ticker import Formatter  # noqa: PLC0415 - as in fit

    class TickTexts(Formatter):
        """All ticks of an axis in one unit."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            del pos  # of matplotlib's interface
            return tick_texts([x])[0]

        def format_ticks(self, values: Sequence[float]) -> list[str]:
            return tick_texts(values)

    return TickTexts()


def _wrapped(axes: Axes, axis: Axis, side: Literal[0, 1]) -> bool:
    """Break the axis's label into more lines if it is longer than its space; return True if it changed.

    A label below has the picture's width; a label at the side has the picture's height up to the top of the axes.
    """
    text = axis.label.get_text()
    low, high = _ends(axis.label.get_window_extent(), side)
    lowest, highest = _ends(axes.figure.get_window_extent(), side)
    if side == 1:
        highest = axes.get_window_extent().y1
    if not text or (low >= lowest and high <= highest):
        return False
    middle = (low + high) / 2
    room = 2 * min(middle - lowest, highest - middle)
    longest = max(map(len, text.splitlines()))
    lines = textwrap.wrap(" ".join(text.split()), max(NARROWEST_LABEL, int(longest * room / (high - low)) - 1))
    axis.label.set_text("\n".join(lines))
    return axis.label.get_text() != text


def _thinned(axis: Axis, side: Literal[0, 1]) -> bool:
    """Take fewer ticks if their texts are closer than a gap; return True if there are fewer now."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - as in fit

    locator = axis.get_major_locator()
    first, last = sorted(axis.get_view_interval())
    shown = [tick for tick in axis.get_major_ticks() if first <= tick.get_loc() <= last and tick.label1.get_text()]
    ends = sorted(_ends(tick.label1.get_window_extent(), side) for tick in shown)
    near = any(after[0] - before[1] < GAP_PIXELS for before, after in pairwise(ends))
    if not near or not isinstance(locator, MaxNLocator) or len(ends) < 3:
        return False
    locator.set_params(nbins=len(ends) - 2)
    return True


def _ends(box: Bbox, side: Literal[0, 1]) -> tuple[float, float]:
    """Both ends of a box, along x (0) or y (1)."""
    return (float(box.x0), float(box.x1)) if side == 0 else (float(box.y0), float(box.y1))
