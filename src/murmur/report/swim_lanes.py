"""Swim-lanes as SVG: one lane per learner, with its gradients, waits and exchanges, and arrows for vectors sent.

The text is written directly, so that equal input gives equal bytes. Colours are CSS variables: those of the page around
the element, or those of a stand-alone file, which has a light and a dark set.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rich.cells import chop_cells

from murmur.core.counted import counted
from murmur.core.printable import printable
from murmur.core.trace import COMMUNICATING, COMPUTE, DATA, EVALUATION, OMITTED, WAITING, Span, Transfer
from murmur.report.drawn import tick_texts

WIDTH, EDGE, LEFT, RIGHT, LINE = 440, 4, 66, 14, 16  # of the picture, texts, lanes, a line; in units of the view box
PITCH, BOX, STRIP = 25, 12, 4  # from lane to lane; height of a gradient, and of the strip of an exchange below it
CELLS = 62  # of a line of text, a wide character counting as two
MOST_LANES, MOST_TICKS = 16, 6
HAIR = 0.05  # widest box that is too narrow to be seen
KINDS = {  # kind -> its words, top and height in the lane; a later one covers an earlier one
    OMITTED: ("not recorded", 5, 2),
    WAITING: ("waiting", 4, 4),
    COMMUNICATING: ("exchange", 0, BOX + STRIP),
    EVALUATION: ("evaluation", 0, BOX),
    DATA: ("reading data", 0, BOX),
    COMPUTE: ("gradient", 0, BOX),
}
MESSAGE = "message"
RULES = (
    ".lanes text{font:12px system-ui,'DejaVu Sans',sans-serif;fill:var(--ink)}.lanes .name{font-weight:700}"
    ".lanes .ground{fill:var(--panel)}.lanes .grid{stroke:var(--grid)}"
    ".lanes .compute{fill:var(--c0);stroke:var(--panel)}.lanes .data{fill:var(--c5)}.lanes .waiting{fill:var(--c4)}"
    ".lanes .communicating{fill:var(--c1)}.lanes .evaluation,.lanes .omitted{fill:var(--muted)}"
    ".lanes .message{stroke:var(--ink);fill:none}.lanes .head{fill:var(--ink)}"
)
LIGHT = (
    "--panel:#ffffff;--ink:#1b1b1b;--muted:#55585c;--grid:#e6e5e1;--c0:#0072b2;--c1:#d55e00;--c4:#b57d00;--c5:#3a9bd0"
)
DARK = (
    "--panel:#1b1f23;--ink:#e9e7e3;--muted:#a8adb3;--grid:#2c3238;--c0:#4fa8e0;--c1:#ff8a3d;--c4:#e8b53a;--c5:#9bd6f8"
)


@dataclass(frozen=True)
class Lanes:
    """The lanes of one run: a heading, and the spans and transfers of its learners."""

    name: str
    spans: Sequence[Span]
    transfers: Sequence[Transfer] = ()

    @property
    def learners(self) -> list[int]:
        ends = {learner for sent in self.transfers for learner in (sent.source, sent.to)}
        return sorted(ends | {span.learner for span in self.spans})

    @property
    def shown(self) -> list[int]:
        """Learners with a lane: at most MOST_LANES, evenly chosen."""
        known = self.learners
        return known if len(known) <= MOST_LANES else [known[i * len(known) // MOST_LANES] for i in range(MOST_LANES)]


@dataclass(frozen=True)
class Axis:
    """The stretch of time that is drawn, in seconds."""

    start: float
    end: float

    def clipped(self, seconds: float) -> float:
        return min(max(seconds, self.start), self.end)

    def x(self, seconds: float) -> float:
        share = (self.clipped(seconds) - self.start) / (self.end - self.start)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def ticks(self) -> list[float]:
        rough = (self.end - self.start) / MOST_TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(step * power for step in (1, 2, 5, 10) if step * power >= 0.999 * rough)
        return [step * i for i in range(math.ceil(self.start / step), math.floor(self.end / step + 1e-6) + 1)]


def swim_lanes(title: str, groups: Sequence[Lanes], start: float, end: float, note: str = "") -> str:
    """Return an SVG element of the lanes of one or several runs between two moments, in seconds; `note` stands below.

    `title` is its title for readers who cannot see it; their description is made from the spans.
    """
    axis, top = Axis(start, end), 8
    body: list[str] = []
    words: list[str] = []
    for group in groups:
        for line in lines_of(group.name):
            body.append(_text(EDGE, top + 10, line, "name"))
            top += LINE
        body += _group(group, axis, top)
        words += _words(group, axis)
        top += PITCH * len(group.shown)
    used = [kind for kind in (*reversed(KINDS), MESSAGE) if any(f'class="{kind}"' in line for line in body)]
    legend, below = _legend(used, top)
    notes = [_text(EDGE, below + LINE * i, line) for i, line in enumerate(lines_of(note))]
    height = below + LINE * len(notes) - 4
    head = f'<svg class="lanes" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
    told = f"<title>{_plain(title)}</title><desc>{_plain('; '.join(words))}</desc>"
    ground = f'<rect class="ground" width="{WIDTH}" height="{height}"/>'
    return "\n".join([f"{head}>{told}", ground, *_grid(axis, top), *body, *legend, *notes, "</svg>"])


def stand_alone(svg: str) -> str:
    """Return the element as a file that follows the reader's choice of light or dark."""
    style = f".lanes{{{LIGHT}}}@media (prefers-color-scheme:dark){{.lanes{{{DARK}}}}}{RULES}"
    head, rest = svg.split(">", 1)
    height = int(head.split('"')[5].split()[3])
    size = f'width="{WIDTH * 3 // 2}" height="{height * 3 // 2}"'
    return f"{head} {size}><style>{style}</style>{rest}\n"


def lines_of(text: str) -> list[str]:
    """Lines of text that fit into the picture."""
    return [part for line in textwrap.wrap(printable(text), CELLS) for part in chop_cells(line, CELLS)]


def _group(group: Lanes, axis: Axis, top: int) -> Iterator[str]:
    at = {learner: top + PITCH * place for place, learner in enumerate(group.shown)}
    for learner, y in at.items():
        yield _text(EDGE, y + 10, f"learner {learner}" if learner < 100 else str(learner))
    for kind, (_, down, height) in KINDS.items():
        boxes = [
            f"M{_number(x)} {at[span.learner] + down}h{_number(width)}v{height}h{_number(-width)}z"
            for span in group.spans
            if span.kind == kind and span.learner in at
            if (width := axis.x(span.end_seconds) - (x := axis.x(span.start_seconds))) > HAIR
        ]
        if boxes:
            yield f'<path class="{kind}" d="{"".join(boxes)}"/>'
    arrows = [_arrow(sent, at, axis) for sent in group.transfers if sent.source in at and sent.to in at]
    for place, name in enumerate((MESSAGE, "head")):
        if drawn := "".join(arrow[place] for arrow in arrows):
            yield f'<path class="{name}" d="{drawn}"/>'


def _arrow(sent: Transfer, at: dict[int, int], axis: Axis) -> tuple[str, str]:
    """The line of an arrow from lane to lane, and its head; each is empty where it lies outside of the axis."""
    began, ended = axis.clipped(sent.sent_seconds), axis.clipped(sent.arrived_seconds)
    if sent.arrived_seconds <= axis.start or sent.sent_seconds >= axis.end:
        return "", ""
    down = at[sent.to] > at[sent.source]
    top, bottom = at[sent.source] + BOX * down, at[sent.to] + BOX * (not down)
    slope = (bottom - top) / max(sent.arrived_seconds - sent.sent_seconds, 1e-12)
    x1, x2 = axis.x(began), axis.x(ended)
    y1, y2 = (top + slope * (seconds - sent.sent_seconds) for seconds in (began, ended))
    line = f"M{_number(x1)} {_number(y1)}L{_number(x2)} {_number(y2)}"
    if sent.arrived_seconds > axis.end:
        return line, ""
    long = math.hypot(x2 - x1, y2 - y1) or 1.0
    dx, dy = (x2 - x1) / long, (y2 - y1) / long
    sides = (f"L{_number(x2 - 5 * dx + 2 * dy * s)} {_number(y2 - 5 * dy - 2 * dx * s)}" for s in (1, -1))
    return line, f"M{_number(x2)} {_number(y2)}{''.join(sides)}z"


def _grid(axis: Axis, bottom: int) -> Iterator[str]:
    ticks = axis.ticks()
    yield f'<path class="grid" d="{"".join(f"M{_number(axis.x(tick))} 8V{bottom}" for tick in ticks)}"/>'
    yield _text(EDGE, bottom + 12, "s")
    for tick, text in zip(ticks, tick_texts(ticks), strict=True):
        yield _text(min(axis.x(tick), WIDTH - 4 * len(text)), bottom + 12, text, middle=True)


def _legend(kinds: Sequence[str], top: int) -> tuple[list[str], int]:
    """The legend below the axis, and the base line of the text below it."""
    made, x, y = [], EDGE, top + 34
    for kind in kinds:
        words, down, height = KINDS.get(kind, (MESSAGE, 0, 0))
        wide = 32 + 7 * len(words)
        if x + wide > WIDTH:
            x, y = EDGE, y + LINE
        swatch = f"M{x} {y - 10 + down}h16v{min(height, BOX)}h-16z"
        if kind == MESSAGE:
            swatch = f'M{x} {y - 4}h13"/><path class="head" d="M{x + 16} {y - 4}l-5 2v-4z'
        made.append(f'<path class="{kind}" d="{swatch}"/>{_text(x + 20, y, words)}')
        x += wide
    return made, y + LINE + 2


def _words(group: Lanes, axis: Axis) -> Iterator[str]:
    sent = Counter(t.source for t in group.transfers if axis.start <= t.sent_seconds < axis.end)
    yield f"{group.name}, {' to '.join(tick_texts([axis.start, axis.end]))} s"
    for learner in group.shown:
        spans = [span for span in group.spans if span.learner == learner]
        parts = []
        for kind, (words, _, _) in KINDS.items():
            lengths = [axis.clipped(s.end_seconds) - axis.clipped(s.start_seconds) for s in spans if s.kind == kind]
            if sum(lengths) > 0:
                parts.append(f"{words} {sum(lengths):.3g} s")
        told = [*reversed(parts), *([counted(sent[learner], MESSAGE) + " sent"] if sent[learner] else [])]
        yield f"learner {learner}: {', '.join(told) or 'nothing'}"


def _text(x: float, y: float, text: str, name: str = "", middle: bool = False) -> str:
    kind, place = f' class="{name}"' * bool(name), ' text-anchor="middle"' * middle
    return f'<text{kind}{place} x="{_number(x)}" y="{y}">{_plain(text)}</text>'


def _plain(text: str) -> str:
    return escape(printable(text))


def _number(value: float) -> str:
    return f"{round(value, 1) + 0:g}"
