"""Classes of comparisons, and the figures that they rest on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from mpmath import betainc

from murmur.comparison.rows import Row
from murmur.report.error_rate import Interval, difference, difference_over_seeds, paired, spread
from murmur_papers.studies.cell import StudyCell
from murmur_papers.studies.machines import MACHINES
from murmur_papers.studies.run import diverged, loss

FIRST_SEEDS = 3  # of a claim's first look
USUAL, SECOND_LOOK = 0.95, 0.975  # probabilities of intervals
NO_LOSS = 1.03  # "equal": within 3 %
Verdict = Literal["better", "equal within 3 %", "worse", "undecided", "reached", "not reached"]
GOOD: tuple[Verdict, ...] = ("better", "equal within 3 %", "reached")
UNKNOWN = "unknown"
LAB_TORCH = "2.13.0+cpu"  # of the processors, by docs/lab, in rows that are older than the field
PLACE = {"device": "device", "hardware": "device", "processor": "device", "build": "build", "torch": "build"}


class EndedRunError(ValueError):
    """A run ended early, so that it has no speed."""


def verdict_of(value: Interval, reference: float | None = None) -> Verdict:
    """The class of a comparison by its whole interval; each interval has one.

    A ratio of losses is better if high < 1, worse if low > 1.03, and equal within 3 % if 1 / 1.03 <= low and
    1 <= high <= 1.03. All others are undecided. For a difference of error rates the limits are those of the ratio less
    1, times the `reference`.

    Args:
        value: ratio to the loss of the reference; or error rate less that of the reference, percent.
        reference: error rate of the reference, percent; None for a ratio.
    """
    same, least, most = 1.0, 1 / NO_LOSS, NO_LOSS
    if reference is not None:
        same, least, most = (reference * (limit - 1) for limit in (same, least, most))
    if value.high < same:
        return "better"
    if value.low > most:
        return "worse"
    return "equal within 3 %" if least <= value.low and value.high <= most else "undecided"


@dataclass(frozen=True)
class Compared(Interval):
    """A system beside a reference: the ratio of their losses, or the difference of their word error rates.

    Attributes:
        seeds: number of seeds whose rows are compared.
        apart: seeds whose rows cannot be compared, by the reason.
        reference: error rate of the reference, percent, for a difference; None for a ratio.
    """

    seeds: int = 0
    apart: Mapping[str, Sequence[int]] = field(default_factory=dict)
    reference: float | None = None

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self, self.reference)

    @property
    def told(self) -> str:
        """The verdict, with the reason if too few rows leave it open."""
        if self.seeds > 1 or self.verdict != "undecided":
            return self.verdict
        return f"undecided: {'one seed' if self.seeds else '; '.join(self.apart) or 'not decoded'}"


def place(row: Row) -> dict[str, str]:
    """What a run was computed on; "unknown" for what its row does not hold."""
    known = {"torch": LAB_TORCH} if row.get("device") == "cpu" else {}
    return {name: str(row.get(name) or known.get(name, UNKNOWN)) for name in PLACE}


def apart(first: Row, second: Row) -> str:
    """Reason for which two rows cannot be compared; "" if they can be."""
    if first["cell"]["budget"] != second["cell"]["budget"]:
        return "different numbers of frames"
    return elsewhere(first, second)


def elsewhere(first: Row, second: Row) -> str:
    """Reason for which two rows of any numbers of frames cannot be compared; "" if they can be.

    Older rows from a GPU do not tell its torch: two of these are compared, but not with a row that tells it. Older rows
    do not tell the kind of their processor, whose name is in "hardware": they are compared with all of that name.
    """
    for name, kind in PLACE.items():
        sides = {place(first)[name], place(second)[name]}
        if UNKNOWN in sides and name != "processor" and (name != "torch" or len(sides) > 1):
            return f"unknown {kind}"
        if len(sides - {UNKNOWN}) > 1:
            return f"different {kind}s"
    return ""


def together(groups: Sequence[Sequence[Row]]) -> tuple[list[list[Row]], dict[str, list[int]]]:
    """Rows of the seeds that all groups have and at which they can be compared, in one order of seeds.

    Returns:
        The rows by group, and the other common seeds by the reason.
    """
    by_seed = [{row["cell"]["seed"]: row for row in rows} for rows in groups]
    kept: list[list[Row]] = [[] for _ in groups]
    left = dict[str, list[int]]()
    for seed in sorted(set.intersection(*map(set, by_seed))):
        rows = [each[seed] for each in by_seed]
        reason = next(filter(None, (apart(rows[0], row) for row in rows[1:])), "")
        if reason:
            left.setdefault(reason, []).append(seed)
        else:
            for group, row in zip(kept, rows, strict=True):
                group.append(row)
    return kept, left


def mean_loss(rows: Sequence[Row]) -> float:
    return statistics.mean(map(loss, rows))


def ratio(first: Sequence[Row], second: Sequence[Row], of: Callable[[Row], float] = loss) -> Compared:
    """Held-out loss of `second` over that of `first`: geometric mean over common seeds with its t interval.

    The interval is a 95 % interval of up to three common seeds, and a 97.5 % interval of more. More are there only
    where three left a claim undecided, so that a second look at a limit must not be as lenient as the first. Rows of
    different devices, builds or numbers of frames are left out.

    One seed has no interval: it is then 0 to infinity, so that it decides nothing; so does no seed. A `second` that
    diverged has an infinite ratio; a `first` that diverged beside a `second` that did not, one of 0.

    Args:
        first, second: rows of the reference, and of the system.
        of: figure of a row, in place of the held-out loss.
    """
    (ones, others), left = together([first, second])
    if any(map(diverged, others)):
        return Compared(math.inf, math.inf, math.inf, USUAL, len(ones), left)
    if any(map(diverged, ones)):
        return Compared(0.0, 0.0, 0.0, USUAL, len(ones), left)
    if len(ones) < 2:
        value = of(others[0]) / of(ones[0]) if ones else math.nan
        return Compared(value, 0.0, math.inf, USUAL, len(ones), left)
    level = USUAL if len(ones) <= FIRST_SEEDS else SECOND_LOOK
    found = paired(map(of, ones), map(of, others), level)
    return Compared(found.value, found.low, found.high, level, len(ones), left)


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
    """Judge "the best of these groups is better than the worst": better at 5 % of the F test over seeds.

    With further seeds it is 2.5 %, as for the intervals of `ratio`. Otherwise undecided: some seeds cannot show that
    groups are alike. A group of which all runs diverged differs from one without such a run; any other run that
    diverged decides nothing. So do fewer than two seeds at which all groups can be compared.
    """
    kept, _ = together(groups)
    if len(kept[0]) < 2:
        return "undecided"
    lost = [[diverged(row) for row in rows] for rows in kept]
    if any(map(any, lost)):
        whole = all(all(each) or not any(each) for each in lost) and not all(map(all, lost))
        return "better" if whole else "undecided"
    chance = equal_chance([[math.log(loss(row)) for row in rows] for rows in kept])
    level = USUAL if len(kept[0]) <= FIRST_SEEDS else SECOND_LOOK
    return "better" if chance < 1 - level else "undecided"


def holds(condition: bool) -> Verdict:
    return "reached" if condition else "not reached"


def holds_throughout(value: Interval, condition: Callable[[float], bool]) -> Verdict:
    """The verdict on a condition that divides numbers at one limit; undecided if the limit is in the interval."""
    low, high = condition(value.low), condition(value.high)
    return holds(low) if low == high else "undecided"


def reach(found: float, published: float) -> str:
    """Whether a speed-up is at least the published one, and how many times that it is."""
    return f"{holds(found >= published)}, {found / published:.2f} times theirs"


def shown(value: Interval) -> str:
    """The value and its interval; seeds that are left out, with the reason."""
    of_words = isinstance(value, Compared) and value.reference is not None
    number, unit = ("{:+.1f}", " points") if of_words else ("{:.3f}", "")
    told = number.format(value.value) + unit
    if value.low == value.high == math.inf:
        told = "diverged"
    elif math.isnan(value.value):
        told = "not compared"
    elif value.low == value.high == 0 and not of_words:
        told = "0 (the reference diverged)"
    elif value.high == math.inf:
        told += " (one seed)"
    else:
        level = "" if value.coverage == USUAL else f", {100 * value.coverage:g} %"
        told += f" ({number.format(value.low)} to {number.format(value.high)}{level})"
    left = value.apart if isinstance(value, Compared) else {}
    notes = (f"{why} at seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" for why, seeds in left.items())
    return f"{told} [{'; '.join(notes)}]" if left else told


def errors(rows: Iterable[Row]) -> dict[int, Mapping[str, tuple[int, int]]]:
    return {row["cell"]["seed"]: row["errors"] for row in rows if row["errors"]}


def wer(rows: Iterable[Row]) -> Interval | None:
    """Word error rate in percent over the decoded seeds, with its interval over utterances; None if none is decoded."""
    found = errors(rows)
    return spread(found) if found else None


def percent(row: Row) -> float | None:
    """Word error rate of a run in percent, without an interval; None if it was not decoded."""
    if not row["errors"]:
        return None
    wrong, words = (sum(pair[k] for pair in row["errors"].values()) for k in (0, 1))
    return 100.0 * wrong / words


def waiting(row: Row) -> str:
    return UNKNOWN if row["waiting_share"] is None else f"{100 * row['waiting_share']:.0f} %"


def wer_difference(first: Iterable[Row], second: Iterable[Row]) -> Compared:
    """Word error rate of `second` less that of `first`, points, over the seeds that both have decoded.

    The interval is over seeds and utterances (`difference_over_seeds`). One seed or none has no interval.
    """
    kept, left = together([[row for row in rows if row["errors"]] for rows in (first, second)])
    before, after = map(errors, kept)
    if not before:
        return Compared(math.nan, -math.inf, math.inf, USUAL, 0, left, 0.0)
    whole = difference(before, after)
    value, reference = whole.difference.value, whole.first.percent
    if len(before) == 1:
        return Compared(value, -math.inf, math.inf, USUAL, 1, left, reference)
    found = difference_over_seeds(before, after)
    return Compared(value, found.low, found.high, USUAL, len(before), left, reference)


def words_apart(first: Iterable[Row], second: Iterable[Row]) -> str:
    """The difference of word error rates as the end of a list of figures."""
    return f"; WER {shown(wer_difference(first, second))}"


def cell_of(row: Row) -> StudyCell:
    return StudyCell(**row["cell"])


def charged_frames(row: Row) -> float:
    """Frames of all learners for which a run's clock was charged; the last minibatches of a pass hold fewer."""
    cell = cell_of(row)
    return cell.piece_frames * cell.training * float(row["turns"])


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


def fast(rows: Sequence[Row]) -> str:
    """How many times as fast as one learner, in words."""
    try:
        return f"{speed_up(rows):.1f} times as fast"
    except EndedRunError:
        return "no speed"


def as_fast(rows: Sequence[Row], published: float) -> str:
    """Whether the speed-up of some runs is at least the published one; it is not if a run ended early."""
    try:
        return reach(speed_up(rows), published)
    except EndedRunError:
        return "not reached"
