"""Rows of runs that nobody made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from murmur.comparison.rows import Row
from murmur_papers.studies.cell import StudyCell

PRIOR = 5.0


def row_of(cell: StudyCell, value: float = 1.0, **more: object) -> Row:
    """A row as a run would write it."""
    plain = {
        "digest": cell.digest,
        "cell": asdict(cell),
        "heldout": {"loss": value, "trial loss": value},
        "best_loss": value,
        "utterances": {f"u{i}": [100 + i, (0.9 + i / 40) * value, (0.9 + i / 40) * value] for i in range(9)},
        "curve": [[float(cell.budget), value, 100.0]],
        "ended": None,
        "prior": PRIOR,
        "turns": cell.turns,
        "seconds": 100.0,
        "waiting_share": 0.1,
        "staleness": 1.0,
        "stalest": 4,
        "consensus_distance": 0.5,
        "probes": [[100, 0.5, 0.1, 1.0, 8.0, 2.0]],
        "sent_bytes": 1e9,
        "errors": {f"u{i}": [i % 3, 5] for i in range(9)} if cell.decoded else None,
        "cpu_seconds": 60.0,
        "decoding_seconds": 10.0,
        "commit": "abc",
        "device": "cpu",
        "hardware": "a machine",
        "processor": "a processor",
        "build": "states",
        "date": "2026-11-22",
    }
    return {**plain, **more}


def invented(cell: StudyCell) -> Row:
    """A different loss for every cell."""
    return row_of(cell, 1 + int(cell.digest, 16) % 1000 / 1000)


def alike(cell: StudyCell) -> Row:
    """A loss that depends on the seed alone."""
    return row_of(cell, 1 + cell.seed / 10)


def changed(times: Callable[[StudyCell], float], **more: Callable[[StudyCell], object]) -> Callable[[StudyCell], Row]:
    """Rows with a loss times a function of the cell, and other figures by such functions."""

    def go(cell: StudyCell) -> Row:
        given = {name: figure(cell) for name, figure in more.items()}
        return row_of(cell, (1 + cell.seed / 10) * times(cell), **given)

    return go
