"""The table of a comparison, from its rows and its runs' recognition results: a line covers all seeds.

Every figure is a mean over the finished seeds, except word error rates, which count the words of all seeds as one
set. Unknown figures are None, and shown as "-".
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from murmur.studies.comparison.grid import ALONE, Cell, Grid
from murmur.studies.comparison.intervals import Errors, difference, errors_of, spread
from murmur.studies.comparison.rows import Row
from murmur.studies.comparison.runs import CellPlace, recognised

Ends = tuple[float, float, float]  # a figure, and the ends of its 95 % interval


@dataclass(frozen=True)
class TableLine:
    """One line of the table.

    Attributes:
        strategy, learners, kind: cells of the line.
        note: reason for missing figures, or failed seeds; "" otherwise.
        cells: names of the cells behind the figures.
        samples: samples of all learners.
        loss, logprob, accuracy: held-out figures; accuracy is a share.
        wer: word error rate on test in percent, with its interval.
        wer_difference: difference from one learner, in points, on the seeds of both.
        hours: wall time or virtual time.
        speed_up: samples per second relative to one learner of the same kind and seed.
        efficiency: speed-up per learner.
        waiting_share: share of the learners' time spent waiting.
        sent_bytes: bytes sent by all learners.
        staleness: mean over steps.
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

    def described(self) -> dict[str, Any]:
        """The line in JSON's terms."""
        return asdict(self)


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
