"""A figure: an SVG element in the colours of the page's theme, a description in words, and its numbers.

Colours are those of Okabe and Ito (2008), distinguishable with any colour vision, each with a line style. In a page
they become CSS variables, so that one drawing serves the light and the dark theme.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from murmur.report.fitting import fit, legend_above

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES: tuple[tuple[int, tuple[float, ...]], ...] = ((0, ()), (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
KIND_COLOURS = {"compute": "#0072b2", "data": "#56b4e9", "waiting": "#e69f00", "communicating": "#d55e00"}
INK, GREY, GRID = "#1b1b1b", "#b8b8b8", "#e4e4e4"
THEME: Mapping[str, str] = {colour: f"var(--c{index})" for index, colour in enumerate(COLOURS)} | {
    INK: "var(--ink)",
    GREY: "var(--line)",
    GRID: "var(--grid)",
    "#ffffff": "none",
}
WIDTH_INCHES, HEIGHT_INCHES, BAR_INCHES = 4.8, 3.1, 0.34
LONGEST_LABEL = 26
Draw = Callable[["Axes"], None]
Table = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]  # names of columns, rows


@dataclass(frozen=True)
class Series:
    """The curve of one run: its index among the page's runs, its name, and (x, y) in the order of x."""

    run: int
    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Curves:
    """The data with which a script draws a figure again, larger and with the values under the pointer."""

    x: str
    y: str
    series: tuple[Series, ...]

    def described(self) -> dict[str, Any]:
        """The curves in JSON's terms."""
        series = [
            {"run": s.run, "name": s.name, "x": [p[0] for p in s.points], "y": [p[1] for p in s.points]}
            for s in self.series
        ]
        return {"x": self.x, "y": self.y, "series": series}


@dataclass(frozen=True)
class Figure:
    """An SVG element with a heading and a description in words.

    Attributes:
        title: heading.
        svg: SVG element.
        words: description for readers who cannot see the figure.
        note: line below the figure that explains how to read it.
        table: numbers drawn.
        curves: data for the page's script; None if the drawing is static.
    """

    title: str
    svg: str
    words: str
    note: str = ""
    table: Table = ((), ())
    curves: Curves | None = None


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


def themed(svg: str) -> str:
    """The element in the colours of the page around it."""

    def style(found: re.Match[str]) -> str:
        return re.sub(r"#[0-9a-f]{6}", lambda colour: THEME.get(colour.group(), colour.group()), found.group())

    return re.sub(r'<[^<>]* style="[^"<>]*"', style, svg)


def colour_of(run: int) -> str:
    """Colour of the run at this index."""
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
