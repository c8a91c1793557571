"""Verdicts on a claim, and the figures that they rest on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
from mpmath import betainc

from murmur.comparison.rows import Row
from murmur.report.error_rate import Interval, difference, paired, spread
from murmur_papers.studies.cell import StudyCell
from murmur_papers.studies.machines import MACHINES
from murmur_papers.studies.run import diverged, loss

FIRST_SEEDS = 3  # of a claim's first look
USUAL, SECOND_LOOK = 0.95, 0.975  # probabilities of intervals
NO_LOSS = 1.03  # "no loss": the whole interval of the ratio of losses is below it
Verdict = Literal["agrees", "differs", "undecided"]
UNBOUNDED = Interval(float("inf"), float("inf"), float("inf"), 0.95)


class EndedRunError(ValueError):
    """A run ended early, so that it has no speed."""


def mean_loss(rows: Sequence[Row]) -> float:
    return statistics.mean(map(loss, rows))


def ratio(first: Sequence[Row], second: Sequence[Row]) -> Interval:
    """Held-out loss of `second` over that of `first`: geometric mean over common seeds with its t interval.

    The interval is a 95 % interval of up to three common seeds, and a 97.5 % interval of more. More are there only
    where three left a claim undecided, so that a second look at a limit must not be as lenient as the first.

    One common seed has no interval: it is then 0 to infinity, so that it decides nothing. A `second` that diverged has
    an infinite ratio; a `first` that diverged beside a `second` that did not, one of 0.
    """
    by_seed = {row["cell"]["seed"]: row for row in first}
    pairs = [(by_seed[row["cell"]["seed"]], row) for row in second if row["cell"]["seed"] in by_seed]
    if any(diverged(b) for _, b in pairs):
        return UNBOUNDED
    if any(diverged(a) for a, _ in pairs):
        return Interval(0.0, 0.0, 0.0, 0.95)
    if len(pairs) == 1:
        return Interval(loss(pairs[0][1]) / loss(pairs[0][0]), 0.0, float("inf"), 0.95)
    level = USUAL if len(pairs) <= FIRST_SEEDS else SECOND_LOOK
    return paired((loss(a) for a, _ in pairs), (loss(b) for _, b in pairs), level)


def equal_chance(groups: Sequence[Sequence[float]]) -> float:
    """The p-value of the hypothesis that all groups have the same mean: an F test with seeds as blocks.

    F = (n sum_g (m_g - m)^2 / (k - 1)) / (sum of squared residuals / ((k - 1) (n - 1))),  k groups of n values, which
    are in the same order of seeds.
    """
    values = np.array(groups, dtype=np.float64)
    k, n = values.shape
    means = values.mean(1, keepdims=True)
    between = n * float(np.square(means - values.mean()).sum())
    left = float(np.square(values - means - values.mean(0) + values.mean()).sum())
    if not between + left:
        return 1.0
    share = left / (left + between)
    return float(betainc((k - 1) * (n - 1) / 2, (k - 1) / 2, 0, share, regularized=True))


def not_alike(groups: Sequence[Sequence[Row]]) -> Verdict:
    """Judge "losses of these groups are not all alike": agrees at 5 % of the F test over seeds.

    With further seeds it is 2.5 %, as for the intervals of `ratio`. Otherwise undecided: some seeds cannot show that
    groups are alike. A group of which all runs diverged differs from one without such a run; any other run that
    diverged decides nothing.
    """
    lost = [[diverged(row) for row in rows] for rows in groups]
    if any(map(any, lost)):
        whole = all(all(each) or not any(each) for each in lost) and not all(map(all, lost))
        return "agrees" if whole else "undecided"
    chance = equal_chance([[math.log(loss(row)) for row in rows] for rows in groups])
    level = USUAL if max(map(len, groups)) <= FIRST_SEEDS else SECOND_LOOK
    return "agrees" if chance < 1 - level else "undecided"


def below(value: Interval, limit: float = 1.0) -> Verdict:
    """Judge "a ratio is below `limit`": agrees if its whole interval is, differs if none of it is, else undecided."""
    return "agrees" if value.high < limit else "differs" if value.low >= limit else "undecided"


def told_apart(value: Interval) -> str:
    """Comparison of the second system of a ratio of losses with the first one, in words, by the interval."""
    return {"agrees": "better than", "differs": "worse than", "undecided": "not told apart from"}[below(value)]


def holds(condition: bool) -> Verdict:
    return "agrees" if condition else "differs"


def shown(value: Interval) -> str:
    if value.low == value.high == float("inf"):
        return "diverged"
    if value.low == value.high == 0:
        return "0 (the reference diverged)"
    if value.high == float("inf"):
        return f"{value.value:.3f} (one seed)"
    level = "" if value.coverage == USUAL else f", {100 * value.coverage:g} %"
    return f"{value.value:.3f} ({value.low:.3f} to {value.high:.3f}{level})"


def errors(rows: Iterable[Row]) -> dict[int, Mapping[str, tuple[int, int]]]:
    return {row["cell"]["seed"]: row["errors"] for row in rows if row["errors"]}


def wer(rows: Iterable[Row]) -> Interval | None:
    """Word error rate in percent over the decoded seeds, with its bootstrap interval; None if none was decoded."""
    found = errors(rows)
    return spread(found) if found else None


def percent(row: Row) -> float | None:
    """Word error rate of a run in percent, without an interval; None if it was not decoded."""
    if not row["errors"]:
        return None
    wrong, words = (sum(pair[k] for pair in row["errors"].values()) for k in (0, 1))
    return 100.0 * wrong / words


def waiting(row: Row) -> str:
    return "unknown" if row["waiting_share"] is None else f"{100 * row['waiting_share']:.0f} %"


def wer_difference(first: Iterable[Row], second: Iterable[Row]) -> Interval | None:
    """Word error rate of `second` less that of `first`, points, over common seeds; None if there are none."""
    sides = errors(first), errors(second)
    return difference(*sides).difference if sides[0].keys() & sides[1].keys() else None


def words_apart(first: Iterable[Row], second: Iterable[Row]) -> str:
    """The difference of word error rates as the end of a list of figures, for systems decoded with seed 0; else ""."""
    found = wer_difference(first, second)
    return "" if found is None else f"; WER {found.value:+.1f} points ({found.low:+.1f} to {found.high:+.1f}, seed 0)"


def cell_of(row: Row) -> StudyCell:
    return StudyCell(**row["cell"])


def charged_frames(row: Row) -> float:
    """Frames of all learners for which a run's clock was charged; the last minibatches of a pass hold fewer."""
    cell = cell_of(row)
    return cell.piece_frames * cell.training * float(row["turns"])


def seconds(row: Row, usual: str) -> float:
    """Virtual seconds of a run; those of one learner need no simulation, and are those of the machines `usual`."""
    return float(row["seconds"]) if row["cell"]["machines"] else MACHINES[usual].alone(charged_frames(row))


def refuse_ended(rows: Iterable[Row]) -> None:
    """Check that runs have a speed; raise EndedRunError if one ended early."""
    for row in rows:
        if row["ended"] is not None:
            raise EndedRunError(f"{cell_of(row).told} ended early: {row['ended']}")


def speed_up(rows: Sequence[Row]) -> float:
    """Virtual seconds of one learner over those of many, for equal numbers of frames; see `refuse_ended`."""
    refuse_ended(rows)
    alone = (MACHINES[row["cell"]["machines"]].alone(charged_frames(row)) for row in rows)
    return statistics.mean(spent / row["seconds"] for spent, row in zip(alone, rows, strict=True))
