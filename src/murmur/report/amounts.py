"""Unequal amounts of training: the samples of each run relative to the run with the most."""

from __future__ import annotations

from collections.abc import Sequence

from murmur.core.counted import counted
from murmur.report.read import Run

TOLERANCE = 0.01  # strategies end within a round of the budget
COLUMN = "of most samples"
MOST_NAMED = 4


def shares(runs: Sequence[Run]) -> dict[str, float]:
    """{name of a run: its samples as a share of the most}; empty if all are equal; runs not begun are left out."""
    samples = {run.name: run.records.last_samples for run in runs if run.records.last_samples > 0}
    most = max(samples.values(), default=0.0)
    found = {name: trained / most for name, trained in samples.items()}
    return found if any(differs(share) for share in found.values()) else {}


def differs(share: float) -> bool:
    """True if a run with this share had less training than the run with the most."""
    return share < 1 - TOLERANCE


def percent(share: float) -> str:
    """A share as a percentage, rounded so that a difference is never written as 100 %."""
    return f"{min(100 * share, 99.9) if differs(share) else 100.0:.3g} %"


def legend_suffix(run: Run, runs: Sequence[Run]) -> str:
    """The text after a run's name in legends; "" if no run had more training."""
    share = shares(runs).get(run.name, 1.0)
    return f" ({percent(share)} of the samples)" if differs(share) else ""


def warnings(ranked: Sequence[Run]) -> list[str]:
    """The warning beside the verdict if runs are not at equal samples."""
    found = shares(ranked)
    if not found:
        return []
    told = [_described(run, found[run.name]) for run in ranked if run.name in found]
    more = f" and {counted(len(told) - MOST_NAMED, 'more run')}" if len(told) > MOST_NAMED else ""
    return [
        f"Not at equal samples: {', '.join(told[:MOST_NAMED])}{more}. A difference between these runs may come from"
        " the amount of training alone: compare them at the same samples."
    ]


def with_shares(
    columns: Sequence[str], rows: Sequence[Sequence[str]], runs: Sequence[Run]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The table, with a column of shares after "samples" if runs are unequal."""
    found = shares(runs)
    if not found:
        return tuple(columns), [tuple(row) for row in rows]
    place = list(columns).index("samples") + 1
    told = [percent(found[run.name]) if run.name in found else "-" for run in runs]
    wider = [(*row[:place], share, *row[place:]) for row, share in zip(rows, told, strict=True)]
    return (*columns[:place], COLUMN, *columns[place:]), wider


def _described(run: Run, share: float) -> str:
    less = f" ({percent(share)} of the most)" if differs(share) else ""
    return f"{run.name} trained on {run.records.last_samples:,.0f}{less}"
