"""Comparisons: reads DIR/cells.jsonl of `murmur compare` into a table and the folders of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from murmur.report.read import ReportError
from murmur.report.records import is_number, read_lines

NOTHING = "-"
COLUMNS = (
    "cell", "strategy", "learners", "seconds of", "seed", "samples", "seconds", "WER %", "95 % interval",
    "held-out loss", "waiting share", "sent MB", "staleness", "consensus distance",
)  # fmt: skip


@dataclass(frozen=True)
class ComparedCells:
    """A comparison: rows of its table, names of finished cells, and problems found while reading."""

    folder: Path
    rows: tuple[tuple[str, ...], ...]
    failed: tuple[str, ...]
    runs: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def folders(self) -> list[Path]:
        return [folder for name in self.runs if (folder := self.folder / "runs" / name).is_dir()]


def is_grid(folder: Path) -> bool:
    return (folder / "cells.jsonl").is_file()


def read_grid(folder: Path) -> ComparedCells:
    """Read cells.jsonl: the later of two lines with one digest counts; damaged lines are left out and noted."""
    cells: dict[str, Mapping[str, Any]] = {}
    problems: list[str] = []

    def take(cell: Any) -> None:
        cells[str(cell["digest"])] = {**cell, "name": _plain(cell["name"]), "status": str(cell["status"])}

    read_lines(folder / "cells.jsonl", take, problems)
    finished = [cell for cell in cells.values() if cell["status"] == "finished"]
    failed = tuple(
        f"{cell['name']} failed: {cell.get('error') or 'no reason was recorded'}"
        for cell in cells.values()
        if cell["status"] != "finished"
    )
    runs = tuple(str(cell["name"]) for cell in finished)
    problems += [f"{folder / 'runs' / name} is missing: there are no curves of this cell"
                 for name in runs if not (folder / "runs" / name).is_dir()]  # fmt: skip
    return ComparedCells(folder, tuple(row(cell) for cell in finished), failed, runs, tuple(problems))


def folders_of(runs: Sequence[Path]) -> list[Path]:
    """Folders of runs, with those of its cells in place of a comparison; single runs first."""
    single = [folder for folder in runs if not is_grid(folder)]
    found = [*single, *(each for folder in runs if is_grid(folder) for each in read_grid(folder).folders)]
    if not found:
        raise ReportError(f"{', '.join(map(str, runs))}: no cell of the comparison has left a run yet")
    return found


def row(cell: Mapping[str, Any]) -> tuple[str, ...]:
    """A cell's line of the table; missing values are "-"."""
    found = cell.get("wer")
    wer: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    told = cell.get("heldout")
    heldout: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    sent = cell.get("sent_bytes")
    ends = (wer.get("low"), wer.get("high"))
    return (
        str(cell["name"]),
        str(cell.get("strategy") or NOTHING),
        number(cell.get("learners"), "g"),
        {"virtual": "virtual cluster", "processes": "this host"}.get(str(cell.get("kind")), NOTHING),
        number(cell.get("seed"), "g"),
        number(cell.get("samples"), ",.0f"),
        number(cell.get("seconds"), ".4g"),
        number(wer.get("percent"), ".2f"),
        " to ".join(number(end, ".2f") for end in ends) if all(map(is_number, ends)) else NOTHING,
        number(heldout.get("loss"), ".4f"),
        number(cell.get("waiting_share"), ".1%"),
        number(sent / 1e6 if isinstance(sent, int | float) else None, ".4g"),
        number(cell.get("staleness"), ".2f"),
        number(cell.get("consensus_distance"), ".3g"),
    )


def number(value: Any, form: str) -> str:
    return format(value, form) if is_number(value) else NOTHING


def _plain(name: Any) -> str:
    """The name of a cell, which names a folder beside the others and cannot lead anywhere else."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is no cell's name")
    return name
