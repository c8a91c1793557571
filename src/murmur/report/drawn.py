"""A figure: an SVG element in the colours of the page's theme, a description in words, and its numbers.

Colours are those of Okabe and Ito (2008), distinguishable with any colour vision, each with a line style. In a page
they become CSS variables, so that one drawing serves the light and the dark theme.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.ticker import Formatter
    from matplotlib.transforms import Bbox

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES: tuple[tuple[int, tuple[float, ...]], ...] = ((0, ()), (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
INK, GREY, GRID = "#1b1b1b", "#b8b8b8", "#e4e4e4"
THEME: Mapping[str, str] = {colour: f"var(--c{index})" for index, colour in enumerate(COLOURS)} | {
    INK: "var(--ink)",
    GREY: "var(--line)",
    GRID: "var(--grid)",
}
# Colours of both themes. Text has a contrast of 4.5 on every background.
LIGHT = (
    "--ground: #f6f5f2; --panel: #ffffff; --ink: #1b1b1b; --muted: #55585c; --line: #b4b4b0; --grid: #e6e5e1; "
    "--link: #00588a; --sub: #9a3d00; --ins: #00588a; --del: #8a2f6c; --alert: #8a3d00; --c0: #0072b2; "
    "--c1: #d55e00; --c2: #00805d; --c3: #b9548b; --c4: #b57d00; --c5: #3a9bd0; --c6: #1b1b1b"
)
DARK = (
    "--ground: #121518; --panel: #1b1f23; --ink: #e9e7e3; --muted: #a8adb3; --line: #565d64; --grid: #2c3238; "
    "--link: #7cc4f0; --sub: #ffab70; --ins: #7cc4f0; --del: #efa3d0; --alert: #ffb27a; --c0: #4fa8e0; "
    "--c1: #ff8a3d; --c2: #2fc79b; --c3: #e59cc4; --c4: #e8b53a; --c5: #9bd6f8; --c6: #f5f4f1"
)
WIDTH_INCHES, HEIGHT_INCHES, BAR_INCHES = 4.8, 3.1, 0.34
LONGEST_LABEL = 26
Draw = Callable[["Axes"], None]
Table = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]  # names of columns, rows


@dataclass(frozen=True)
class Figure:
    """An SVG element with a heading.

    Attributes:
        words: description for readers who cannot see the figure.
        note: line below the figure that explains how to read it.
        table: numbers drawn.
        curves: {x, y: labels, series: [{run, name, x, y}]}, with which the page's script draws the figure again, larger
            and with the values under the pointer; None if the drawing is static.
    """

    title: str
    svg: str
    words: str
    note: str = ""
    table: Table = ((), ())
    curves: Mapping[str, Any] | None = None


def drawn(title: str, words: str, draw: Draw, height_inches: float, width_inches: float = WIDTH_INCHES) -> str:
    """An SVG element of fresh axes, drawn without pyplot's list of open figures."""
    import matplotlib as mpl  # noqa: PLC0415 - the extra `viz` is optional, and this takes a second
    from matplotlib.figure import Figure  # noqa: PLC0415

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": title,
        "font.size": 10.5,
        "text.color": INK,
        "text.parse_math": False,  # names of runs are names
        "axes.labelcolor": INK,
        "axes.edgecolor": GREY,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        fit(axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", facecolor="white", metadata={"Date": None})
    return inline(file.getvalue(), title, words)


def inline(svg: str, title: str, words: str) -> str:
    """A stand-alone SVG document as an element of a page: no prologue, no fixed size, a title and a label.

    Groups with a name that begins with "run" or "tip:" get it as a class or a title, for the page to hide or explain.
    """
    element = svg[svg.index("<svg") :]
    head, rest = element.split(">", 1)
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    rest = re.sub(r"\s*<metadata>.*?</metadata>", "", rest, flags=re.DOTALL)
    rest = re.sub(r'<g id="run(\d+)[^"]*">', r'<g class="run\1">', rest)
    rest = re.sub(r'<g id="tip:([^"]*)">', r"<g><title>\1</title>", rest)
    rest = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", rest)  # names of groups, equal in all figures of a page
    label = escape(f"{title}. {words}", quote=True)
    return f'{head} role="img" aria-label="{label}">{rest}'


def themed(svg: str, ground: str = "none") -> str:
    """The element in the colours of the page around it, on its ground or another one."""
    theme = {**THEME, "#ffffff": ground}

    def style(found: re.Match[str]) -> str:
        return re.sub(r"#[0-9a-f]{6}", lambda colour: theme.get(colour.group(), colour.group()), found.group())

    return re.sub(r'<[^<>]* style="[^"<>]*"', style, svg)


def stand_alone(svg: str) -> str:
    """The element as a file of its own, in the light or the dark colours that its viewer prefers."""
    head, rest = themed(svg, "var(--panel)").split(">", 1)
    style = f"svg {{ {LIGHT} }} @media (prefers-color-scheme: dark) {{ svg {{ {DARK} }} }}"
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head}><style>{style}</style>{rest}\n'


def colour_of(run: int) -> str:
    return COLOURS[run % len(COLOURS)]


def dash_of(run: int) -> tuple[int, tuple[float, ...]]:
    """Dash pattern of the run at this index, different for neighbours and in every round of the colours."""
    return DASHES[(run + run // len(COLOURS)) % len(DASHES)]


def short(name: str) -> str:
    """A name that fits beside an axis: one line, with the middle of a long name left out."""
    line = " ".join("".join(c if c.isprintable() else " " for c in name).split()) or "?"
    if len(line) <= LONGEST_LABEL:
        return line
    half = (LONGEST_LABEL - 1) // 2
    return f"{line[:half]}…{line[-half:]}"


def bars(title: str, names: Sequence[str], parts: Mapping[str, Sequence[float]], colours: Mapping[str, str]) -> Figure:
    """Stacked horizontal bars of seconds."""

    def draw(axes: Axes) -> None:
        left = [0.0] * len(names)
        for part, seconds in parts.items():
            if not any(seconds):
                continue
            boxes = axes.barh(range(len(names)), seconds, left=left, label=short(part), color=colours[part], height=0.6)
            for box, name, length in zip(boxes, names, seconds, strict=True):
                box.set_gid(f"tip:{short(name)}: {short(part)} {length:.4g} s")
            left = [a + b for a, b in zip(left, seconds, strict=True)]
        axes.set_yticks(range(len(names)), [short(name) for name in names])
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
        if any(map(any, parts.values())):
            legend_above(axes)

    told = [", ".join(f"{part} {s[i]:.1f} s" for part, s in parts.items() if s[i] > 0) for i in range(len(names))]
    words = "; ".join(f"{name}: {text}" for name, text in zip(names, told, strict=True))
    rows = tuple((name, *(f"{s[i]:.4g}" for s in parts.values())) for i, name in enumerate(names))
    table = (("", *(f"{part}, s" for part in parts)), rows)
    return Figure(title, drawn(title, words, draw, 1.3 + BAR_INCHES * len(names)), words, table=table)


ROUNDS = 12  # of drawing and shrinking
GAP_PIXELS = 5.0  # between two texts of an axis
MOST_COLUMNS = 4  # of a legend


def fit(axes: Axes) -> None:
    """Write the ticks of number axes, and thin out ticks until no two texts of an axis touch.

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
        if not any([_thinned(axis, side) for axis, side in both]):
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


UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))  # used from this magnitude on
LARGEST, SMALLEST = 1e12, 1e-3  # a power of ten is written outside this range
LEAST_EXPONENT = -300  # smaller powers of ten lose digits
MOST_DECIMALS = 15
CLOSE = 0.01  # allowed error of a text, as a share of the distance between two ticks


def tick_texts(values: Sequence[float]) -> list[str]:
    """Texts of these ticks, with the fewest decimals that are exact to a hundredth of the distance between two."""
    finite = sorted({value for value in values if math.isfinite(value)})
    largest = max((abs(value) for value in finite), default=0.0)
    step = min((b - a for a, b in pairwise(finite)), default=largest)
    scale, unit = scale_of(largest)
    for decimals in range(MOST_DECIMALS + 1):
        if all(abs(float(f"{value / scale:.{decimals}f}") * scale - value) <= CLOSE * step for value in finite):
            break
    return [written(value / scale, decimals, unit) if math.isfinite(value) else "" for value in values]


def scale_of(largest: float) -> tuple[float, str]:
    """The unit of an axis that extends this far from 0."""
    if largest == 0 or SMALLEST <= largest < LARGEST:
        return next(((scale, unit) for scale, unit in UNITS if largest >= scale), (1.0, ""))
    exponent = max(LEAST_EXPONENT, math.floor(math.log10(largest)))
    return 10.0**exponent, f"e{exponent}"


def written(value: float, decimals: int, unit: str) -> str:
    """A scaled value with its unit; 0 has neither sign nor unit."""
    text = f"{value:.{decimals}f}"
    return "0" if float(text) == 0 else f"{text}{unit}"
