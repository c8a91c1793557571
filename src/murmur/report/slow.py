"""Learners that were slow for a while, according to the records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

WORDS = {"compute": "computing", "data": "waiting for its data", "network": "sending"}
COLUMNS = ("run", "learner", "host", "slow at", "times the median", "from second", "to second", "from sample")


@dataclass(frozen=True)
class Slow:
    """A stretch of a run in which one learner was slow.

    Attributes:
        learner: number of the learner.
        host: host of the learner; empty if there is only one.
        cause: "compute", "data" or "network".
        factor: ratio to the median of the others, at most; None if it cannot be determined.
        since_seconds, since_samples: training time and samples of the run when it began.
        until_seconds: training time when it ended; None if it lasted to the end.
    """

    learner: int
    host: str
    cause: str
    factor: float | None
    since_seconds: float
    since_samples: float
    until_seconds: float | None = None

    def row(self, run: str) -> tuple[str, ...]:
        """The line of the table."""
        return (
            run,
            str(self.learner),
            self.host or "-",
            WORDS.get(self.cause, self.cause),
            "-" if self.factor is None else f"{self.factor:.1f}",
            f"{self.since_seconds:.0f}",
            "the end" if self.until_seconds is None else f"{self.until_seconds:.0f}",
            f"{self.since_samples:,.0f}",
        )


def take_in(known: list[Slow], row: Mapping[str, Any]) -> None:
    """Add a record of kind "straggler", which begins a stretch or ends the learner's latest one.

    Raises:
        KeyError, TypeError, ValueError: it is not such a record.
    """
    factor = row.get("factor")
    found = Slow(
        learner=int(row["learner"]),
        host=str(row.get("host") or ""),
        cause=str(row["cause"]),
        factor=None if factor is None else float(factor),
        since_seconds=float(row["since_seconds"]),
        since_samples=float(row["since_samples"]),
        until_seconds=float(row["seconds"]) if row["over"] else None,
    )
    began = replace(found, factor=None, until_seconds=None)
    known[:] = [slow for slow in known if replace(slow, factor=None) != began]
    known.append(found)
