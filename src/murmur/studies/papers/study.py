"""A study: runs, and findings derived from them by rules fixed beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from murmur.speech.decoding.bootstrap import Interval
from murmur.studies.comparison.intervals import paired
from murmur.studies.comparison.rows import Row
from murmur.studies.papers.cell import StudyCell
from murmur.studies.papers.run import loss

SEEDS = (0, 1, 2)
Verdict = Literal["agrees", "differs", "undecided"]
Groups = Mapping[str, Sequence[Row]]
Go = Callable[[StudyCell], Row]


@dataclass(frozen=True)
class Finding:
    """One conclusion of a paper compared with ours.

    Attributes:
        claim: the paper's conclusion, in a few words.
        published: the paper's numbers; "" if none are accessible.
        rule: condition for agreement; fixed before any run.
        ours: our numbers.
        verdict: outcome of the rule.
        why: explanation from the rows.
    """

    claim: str
    published: str
    rule: str
    ours: str
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True)
class Study:
    """The experiments of one paper.

    Attributes:
        name: name on the command line.
        paper: authors, title, year.
        design: description of the runs.
        runs: function that returns the rows by group, given a function that makes or finds the row of a cell.
        findings: function that derives the findings from those rows alone.
    """

    name: str
    paper: str
    design: str
    runs: Callable[[Go], Groups]
    findings: Callable[[Groups], list[Finding]]


def seeded(cell: StudyCell, go: Go, seeds: Sequence[int] = SEEDS) -> list[Row]:
    """A cell with every seed."""
    return [go(replace(cell, seed=seed)) for seed in seeds]


def ratio(first: Sequence[Row], second: Sequence[Row]) -> Interval:
    """Held-out loss of `second` over that of `first`, geometric mean over seeds with its t interval."""
    return paired(map(loss, first), map(loss, second))


def lower(value: Interval) -> Verdict:
    """Judge "a ratio is below 1": agrees if its whole interval is below 1, differs if its whole interval is above."""
    return "agrees" if value.high < 1 else "differs" if value.low > 1 else "undecided"


def at_most(value: Interval, limit: float) -> Verdict:
    """Judge "a ratio is at most `limit`": agrees if the whole interval is, differs if none of it is, else undecided."""
    return "agrees" if value.high <= limit else "differs" if value.low > limit else "undecided"


def holds(condition: bool) -> Verdict:
    """Judge a condition on figures without chance: agrees or differs."""
    return "agrees" if condition else "differs"


def shown(value: Interval) -> str:
    """A ratio with its interval."""
    return f"{value.value:.3f} ({value.low:.3f} to {value.high:.3f})"


def speed_up(alone: Sequence[Row], many: Sequence[Row]) -> float:
    """Virtual seconds per frame of one learner relative to those of many, over all seeds."""

    def pace(rows: Sequence[Row]) -> float:
        return sum(row["seconds"] for row in rows) / sum(row["cell"]["budget"] for row in rows)

    return pace(alone) / pace(many)
