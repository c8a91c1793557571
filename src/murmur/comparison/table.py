"""The table of a comparison, from its rows and its runs' recognition results: a line covers all seeds.

Every figure is a mean over the finished seeds, except word error rates, which count the words of all seeds as one
set. Unknown figures are None, and shown as "-".
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from murmur.comparison.grid import ALONE, Cell, Grid
from murmur.comparison.rows import Row
from murmur.comparison.runs import CellPlace, recognised
from murmur.core.whole_files import write_whole
from murmur.report.error_rate import Errors, difference, errors_of, spread
from murmur.report.terminal_table import TerminalTable

Ends = tuple[float, float, float]  # a figure, and the ends of its 95 % interval


@dataclass(frozen=True)
class TableLine:
    """One line of the table.

    Attributes:
        note: reason for missing figures, or failed seeds; "" otherwise.
        cells: names of the cells behind the figures.
        loss, logprob, accuracy: held-out figures; accuracy is a share.
        wer: word error rate on test in percent, with its interval.
        wer_difference: difference from one learner, in points, on the seeds of both.
        hours: wall time or virtual time.
        speed_up: samples per second relative to one learner of the same kind and seed.
        waiting_share: share of the learners' time spent waiting.
        consensus_distance: distance at the last evaluation.
    """

    strategy: str
    learners: int
    kind: str
    note: str = ""
    cells: tuple[str, ...] = ()
    samples: float | None = None
    loss: float | None = None
    logprob: float | None = None
    accuracy: float | None = None
    wer: Ends | None = None
    wer_difference: Ends | None = None
    hours: float | None = None
    speed_up: float | None = None
    efficiency: float | None = None
    waiting_share: float | None = None
    sent_bytes: float | None = None
    staleness: float | None = None
    consensus_distance: float | None = None


@dataclass
class RecognisedWords:
    """Word errors of runs, by seed; read from the runs' folders.

    Attributes:
        of: {name of a cell: errors by utterance}.
        speakers: speaker of every utterance.
    """

    place: CellPlace
    of: dict[str, Errors] = field(default_factory=dict)
    speakers: dict[str, str] = field(default_factory=dict)

    def by_seed(self, rows: Iterable[Row]) -> dict[int, Errors]:
        """Errors by seed, of the rows with recognition results."""
        found = {}
        for row in rows:
            errors = self._read(row["name"])
            if errors:
                found[int(row["seed"])] = errors
        return found

    def _read(self, name: str) -> Errors:
        if name not in self.of:
            errors, speakers = errors_of(recognised(self.place.out / "runs" / name))
            self.of[name] = errors
            self.speakers |= speakers
        return self.of[name]


def table(grid: Grid, rows: Mapping[str, Row], place: CellPlace) -> list[TableLine]:
    """All lines of a grid, in its order; a cell without a row yet has a note."""
    cells, words = grid.cells(), RecognisedWords(place)
    groups: dict[tuple[str, str, int], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.kind, cell.strategy, cell.learners), []).append(cell)
    found = {name: [rows.get(grid.digest(cell)) for cell in each] for name, each in groups.items()}
    lines = []
    for (kind, strategy, learners), each in found.items():
        alone = _finished(found[kind, ALONE, 1])
        lines.append(_line(TableLine(strategy, learners, kind), each, alone, words))
    return sorted([*lines, *_left_out(grid)], key=lambda line: (line.kind, line.learners))


def _left_out(grid: Grid) -> list[TableLine]:
    lines = []
    for kind, numbers in (("processes", grid.learners), ("virtual", grid.virtual)):
        for learners in numbers:
            for text in grid.strategies:
                why = grid.why_not(Cell(kind, text, learners, 0))  # type: ignore[arg-type]
                if why is not None and learners > 1:  # with one learner, the plain loop's row stands for it
                    lines.append(TableLine(text, learners, kind, why))
    return lines


def _finished(rows: Sequence[Row | None]) -> list[Row]:
    return [row for row in rows if row is not None and row["status"] == "finished"]


def _line(named: TableLine, rows: Sequence[Row | None], alone: Sequence[Row], words: RecognisedWords) -> TableLine:
    done = _finished(rows)
    speed = _speed_up(done, alone)
    samples = _mean(done, lambda row: row["samples"])
    hours = _mean(done, lambda row: row["seconds"])
    return TableLine(
        named.strategy,
        named.learners,
        named.kind,
        _note(rows),
        tuple(row["name"] for row in done),
        samples,
        _mean(done, lambda row: row["heldout"].get("loss")),
        _mean(done, lambda row: row["heldout"].get("logprob")),
        _mean(done, lambda row: row["heldout"].get("frame accuracy", row["heldout"].get("accuracy"))),
        *_words(done, alone, words),
        None if hours is None else hours / 3600,
        speed,
        None if speed is None else speed / named.learners,
        *(
            _mean(done, lambda row, name=name: row[name])  # type: ignore[misc]
            for name in ("waiting_share", "sent_bytes", "staleness", "consensus_distance")
        ),
    )


def _note(rows: Sequence[Row | None]) -> str:
    failed = [f"seed {row['seed']} failed: {row['error']}" for row in rows if row and row["status"] == "failed"]
    missing = sum(row is None for row in rows)
    return "; ".join([*failed, *([f"{missing} of {len(rows)} seeds not run yet"] if missing else [])])


def _mean(rows: Sequence[Row], of: Callable[[Row], float | None]) -> float | None:
    """Mean over the rows; None if a row lacks the figure, since a mean over some of the seeds is not comparable."""
    values = [of(row) for row in rows]
    known = [float(value) for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _speed_up(rows: Sequence[Row], alone: Sequence[Row]) -> float | None:
    before = {row["seed"]: row for row in alone}
    pairs = [(before[row["seed"]], row) for row in rows if row["seed"] in before]
    if not pairs or len(pairs) < len(rows) or not all(row["seconds"] for pair in pairs for row in pair):
        return None
    return statistics.fmean((b["samples"] / b["seconds"]) / (a["samples"] / a["seconds"]) for a, b in pairs)


def _words(rows: Sequence[Row], alone: Sequence[Row], words: RecognisedWords) -> tuple[Ends | None, Ends | None]:
    mine = words.by_seed(rows)
    if not mine or len(mine) < len(rows):
        return None, None
    rate = spread(mine, words.speakers)
    ends = (rate.value, rate.low, rate.high)
    others = words.by_seed(alone)
    itself = [row["name"] for row in rows] == [row["name"] for row in alone]
    if itself or not mine.keys() & others.keys():
        return ends, None
    against = difference(others, mine, words.speakers).difference
    return ends, (against.value, against.low, against.high)


Show = Callable[[Any], str]


def _figure(form: str) -> Show:
    return lambda value: format(value, form)


def _ends(value: tuple[float, float, float]) -> str:
    return f"{value[0]:.2f} ({value[1]:.2f} to {value[2]:.2f})"


def _points(value: tuple[float, float, float]) -> str:
    return f"{value[0]:+.2f} ({value[1]:+.2f} to {value[2]:+.2f})"


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def _time(hours: float) -> str:
    return f"{hours:.3g} h" if hours >= 0.1 else f"{3600 * hours:.3g} s"


COLUMNS: tuple[tuple[str, str, Show], ...] = (  # field of a line, head, formatter
    ("strategy", "strategy", str),
    ("learners", "learners", str),
    ("kind", "kind", str),
    ("samples", "samples", _figure(".4g")),
    ("loss", "held-out loss", _figure(".4f")),
    ("logprob", "log-prob. a frame", _figure(".4f")),
    ("accuracy", "accuracy", _figure(".4f")),
    ("wer", "WER % (95 %)", _ends),
    ("wer_difference", "WER - one learner's", _points),
    ("hours", "time", _time),
    ("speed_up", "speed-up", _figure(".2f")),
    ("efficiency", "efficiency", _figure(".0%")),
    ("waiting_share", "waiting", _figure(".0%")),
    ("sent_bytes", "sent", _bytes),
    ("staleness", "staleness", _figure(".2f")),
    ("consensus_distance", "consensus distance", _figure(".3g")),
)
NAMES = ("strategy", "learners", "kind")
QUALITY = ("samples", "loss", "logprob", "accuracy", "wer", "wer_difference")
SPEED = ("hours", "speed_up", "efficiency", "waiting_share", "sent_bytes", "staleness", "consensus_distance")


def shown(line: TableLine, name: str, show: Show) -> str:
    value = getattr(line, name)
    return "-" if value is None else show(value)


def used(lines: Sequence[TableLine]) -> list[tuple[str, str, Show]]:
    return [column for column in COLUMNS if any(getattr(line, column[0]) is not None for line in lines)]


def console_tables(lines: Sequence[TableLine], title: str) -> list[TerminalTable]:
    """Tables for the terminal: results of learning, and speed. Empty columns are left out."""
    columns = used(lines)
    tables = []
    for what, names in (("what was learnt", QUALITY), ("how fast", SPEED)):
        chosen = [column for column in columns if column[0] in (*NAMES, *names)]
        if len(chosen) == len(NAMES):
            continue  # there are no runs yet
        right = [head for name, head, _ in chosen if name not in ("strategy", "kind")]
        heads = [head for _, head, _ in chosen]
        table = TerminalTable(heads, f"{title}: {what}", right=right, keys=len(NAMES))
        for line in lines:
            table.add_row(*(shown(line, name, show) for name, _, show in chosen))
        tables.append(table)
    return tables


def markdown(lines: Sequence[TableLine]) -> str:
    """A table, with the reasons for empty lines below it."""
    columns = used(lines)
    cells = [[head for _, head, _ in columns], ["---" if name in NAMES else "--:" for name, _, _ in columns]]
    cells += [[shown(line, name, show).replace("|", r"\|") for name, _, show in columns] for line in lines]
    rows = ["| " + " | ".join(each) + " |" for each in cells]
    return "\n".join([*rows, "", *(f"- {note}" for note in notes(lines))]).rstrip() + "\n"


def notes(lines: Sequence[TableLine]) -> list[str]:
    """Reasons for lines that are empty or lack seeds."""
    return [f"{line.strategy}, {line.learners} {line.kind}: {line.note}" for line in lines if line.note]


def comma_separated(lines: Sequence[TableLine]) -> str:
    """Every field with all its digits; intervals take three columns."""
    out = io.StringIO()
    names = [f.name for f in fields(TableLine)]
    heads = [end for name in names for end in _heads(name)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    for line in lines:
        writer.writerow([value for name in names for value in _values(name, getattr(line, name))])
    return out.getvalue()


def _heads(name: str) -> list[str]:
    return [name, f"{name}_low", f"{name}_high"] if name.startswith("wer") else [name]


def _values(name: str, value: Any) -> list[Any]:
    if name == "cells":
        return [" ".join(value)]
    if name.startswith("wer"):
        return ["", "", ""] if value is None else list(value)
    return ["" if value is None else value]


def write(lines: Sequence[TableLine], out: Path) -> None:
    described = [asdict(line) for line in lines]
    write_whole(out / "table.json", (json.dumps(described, indent=1, ensure_ascii=False) + "\n").encode())
    write_whole(out / "table.csv", comma_separated(lines).encode())
    write_whole(out / "table.md", markdown(lines).encode())
