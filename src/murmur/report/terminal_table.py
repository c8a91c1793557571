"""A table for the terminal that fits the console's width and breaks no word.

Text is wrapped at blanks. A word wider than its column, such as the text of a strategy, is broken after an opening
parenthesis or a comma. A table that is still wider than the console is split into several, one below the other, and
each repeats the columns that name a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.box import HEAVY_HEAD, Box
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from murmur.core.printable import printable

INSIDE = re.compile(r"(?<=\w\()(?=[^)])|(?<=[^\d],)(?=.)|(?<=,)(?=\D)")  # neither in `name()` nor in 1,234
GAP = 2  # blanks between two columns without lines
SHORT = 12  # cells up to this width, such as "13 h 42 min", are not wrapped


@dataclass(frozen=True)
class Widths:
    """Widths of a column, in cells of the terminal.

    Attributes:
        least: width of the longest part that is never broken, in the heading and the rows, or of a whole short cell.
        rows: width that leaves every row on one line.
        whole: width that also leaves the heading on one line.
    """

    least: int
    rows: int
    whole: int


@dataclass
class TerminalTable:
    """A table that `rich` prints; cells are plain text, without markup.

    Attributes:
        title, caption: above and below the table; "" for none.
        right: headings of the columns that are aligned to the right.
        keys: number of leading columns that name a row; they are repeated when the table is split.
        box: lines around the cells; None for blanks alone.
    """

    heads: Sequence[str]
    title: str = ""
    caption: str = ""
    right: Sequence[str] = ()
    keys: int = 1
    box: Box | None = HEAVY_HEAD
    rows: list[tuple[list[Text], str]] = field(default_factory=list)

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        """Add a row with a cell for every column."""
        if len(cells) != len(self.heads):
            raise ValueError(f"the table has {len(self.heads)} columns, the row {len(cells)} cells")
        self.rows.append(([Text(printable(cell)) if isinstance(cell, str) else cell for cell in cells], style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Rich tables that fit the width, with the title above the first and the caption below the last."""
        columns = [self._widths(at) for at in range(len(self.heads))]
        parts = list(self._parts(columns, options.max_width))
        for number, part in enumerate(parts):
            widths = fitted([columns[at] for at in part], options.max_width - self._frame(len(part)))
            title = self.title if number == 0 else ""
            caption = self.caption if number == len(parts) - 1 else ""
            yield self._table(dict(zip(part, widths, strict=True)), title, caption, options.max_width)

    def _widths(self, at: int) -> Widths:
        head, cells = self.heads[at], [cells[at].plain for cells, _ in self.rows]
        lines = [line for cell in cells for line in cell.split("\n")]
        short = [cell_len(line) for line in lines if cell_len(line) <= SHORT]
        least = max([*map(longest_part, [head, *cells]), *short])
        rows = max([least, *map(cell_len, lines)])
        return Widths(least, rows, max(rows, cell_len(head)))

    def _frame(self, columns: int) -> int:
        return 3 * columns + 1 if self.box else GAP * (columns - 1)

    def _parts(self, columns: Sequence[Widths], room: int) -> Iterator[list[int]]:
        """The columns of each table."""
        part = list(range(self.keys))
        for at in range(self.keys, len(columns)):
            longer = [*part, at]
            width = self._frame(len(longer)) + sum(columns[each].least for each in longer)
            if width > room and len(part) > self.keys:
                yield part
                longer = [*range(self.keys), at]
            part = longer
        yield part

    def _table(self, widths: dict[int, int], title: str, caption: str, room: int) -> Table:
        width = max(self._frame(len(widths)) + sum(widths.values()), longest_part(title), longest_part(caption))
        width = min(width, room)
        table = Table(box=self.box, min_width=width)
        if self.box is None:
            table.pad_edge, table.padding = False, (0, GAP, 0, 0)
        if title:
            table.title = Text("\n".join(wrapped(title, width)), style="table.title")
        if caption:
            table.caption = Text("\n".join(wrapped(caption, width)), style="table.caption")
        for at, each in widths.items():
            side: Literal["left", "right"] = "right" if self.heads[at] in self.right else "left"
            table.add_column("\n".join(wrapped(self.heads[at], each)), justify=side, width=each, no_wrap=True)
        for cells, style in self.rows:
            shown = ("\n".join(wrapped(cells[at].plain, each)) for at, each in widths.items())
            styles = (cells[at].style for at in widths)
            table.add_row(*(Text(text, style=own) for text, own in zip(shown, styles, strict=True)), style=style)
        return table


def parts_of(word: str) -> list[str]:
    """The parts of a word that are never broken."""
    return INSIDE.split(word)


def longest_part(text: str) -> int:
    """Width of the longest part of a text that is never broken; at least 1."""
    return max([1, *(cell_len(part) for word in text.split() for part in parts_of(word))])


def wrapped(text: str, width: int) -> list[str]:
    """Lines of a text, no wider than `width`.

    Only a part that is never broken and is wider than `width` gives a wider line.
    """
    return [line for given in text.split("\n") for line in _wrapped(given, width)]


def _wrapped(text: str, width: int) -> list[str]:
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for word in text.split():
        parts = [word] if cell_len(word) <= width else parts_of(word)
        blank = " " if lines[-1] else ""
        for part in parts:
            for piece in [part] if cell_len(part) <= width else chop_cells(part, width):
                if cell_len(lines[-1] + blank + piece) <= width:
                    lines[-1] += blank + piece
                else:
                    lines.append(piece)
                blank = ""
    return lines if lines[0] else lines[1:]


def fitted(columns: Sequence[Widths], room: int) -> list[int]:
    """Widths of columns that fit into `room`: the widest columns are wrapped first, headings before rows."""
    least = levelled([1] * len(columns), [column.least for column in columns], room)
    rows = levelled(least, [max(low, column.rows) for low, column in zip(least, columns, strict=True)], room)
    return levelled(rows, [max(low, column.whole) for low, column in zip(rows, columns, strict=True)], room)


def levelled(low: Sequence[int], high: Sequence[int], room: int) -> list[int]:
    """Widths between `low` and `high`, cut at the largest common width that fits; `low` if none fits."""
    ends = list(zip(low, high, strict=True))
    for level in range(max(high), 0, -1):
        widths = [min(most, max(least, level)) for least, most in ends]
        if sum(widths) <= room:
            return widths
    return list(low)
