"""A table for the terminal, as CSV, JSON and Markdown, with the same figures in all of them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from murmur.engine.checkpoints.checkpoint import write_whole
from murmur.report.terminal_table import TerminalTable
from murmur.studies.comparison.table import TableLine

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
    """A field of a line in readable form; "-" if there is none."""
    value = getattr(line, name)
    return "-" if value is None else show(value)


def used(lines: Sequence[TableLine]) -> list[tuple[str, str, Show]]:
    """The columns in which some line has a value."""
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
    fields = list(TableLine("", 0, "").described())
    heads = [end for name in fields for end in _heads(name)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    for line in lines:
        writer.writerow([value for name in fields for value in _values(name, getattr(line, name))])
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
    """Write table.json, table.csv and table.md."""
    described = [line.described() for line in lines]
    write_whole(out / "table.json", (json.dumps(described, indent=1, ensure_ascii=False) + "\n").encode())
    write_whole(out / "table.csv", comma_separated(lines).encode())
    write_whole(out / "table.md", markdown(lines).encode())
