"""Ratios of held-out losses with intervals over seeds and utterances.

Of a pair of runs with seed s, with nats a_u of the first and b_u of the second in judging utterance u,

    x_s = ln(sum_u b_u / sum_u a_u),    d_u = U mean_s(b_u / sum b - a_u / sum a)          U utterances, S seeds

the variance of mean_s x_s is var_u(d) / U + v / S: the first part is that of other utterances (the delta method), the
second that of other seeds. Two seeds alone do not give v, so that it is pooled over the numbers of turns of a system.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps

import numpy as np
from numpy.typing import NDArray

from murmur.comparison.rows import Row
from murmur.report.error_rate import T_95, Interval
from murmur_papers.studies.run import diverged
from murmur_papers.studies.study import Groups, Outcome, undecided
from murmur_papers.studies.verdicts import USUAL, elsewhere
from murmur_papers.tasks.judged_frames import TRIAL

Pair = tuple[Row, Row]  # the reference of one seed, and the run that is compared with it
END, BEST = 1, 2  # places in a row's "utterances": at the end, at the evaluation point with the lowest loss
Array = NDArray[np.float64]


def trial_loss(row: Row) -> float:
    """Loss on the part of dev that serves trials; infinity for a run that diverged."""
    return float("inf") if diverged(row) else float(row["heldout"][TRIAL])


def best_loss(row: Row) -> float:
    """Lowest loss at an evaluation point, on the part of dev that judges; infinity if there is none."""
    return float("inf") if row["best_loss"] is None else float(row["best_loss"])


def nats(row: Row, place: int) -> Array:
    """Nats of each judging utterance, (U,), in the order of names."""
    return np.array([each[0] * each[place] for _, each in sorted(row["utterances"].items())])


@dataclass(frozen=True)
class LogRatio:
    """Logarithm of a ratio of losses.

    Attributes:
        values: x, one a seed, (S,).
        influences: d, of each utterance, (U,).
    """

    values: Array
    influences: Array

    @classmethod
    def of(cls, pairs: Sequence[Pair], first: int = BEST, second: int = END) -> LogRatio:
        """The ratio of pairs of runs, at `first` of the reference and at `second` of the other run.

        Raises:
            ValueError: runs were judged on different utterances.
        """
        if len({tuple(sorted(row["utterances"])) for pair in pairs for row in pair}) != 1:
            raise ValueError("runs that were judged on different utterances are not compared")
        sides = [(nats(a, first), nats(b, second)) for a, b in pairs]
        values = np.array([math.log(b.sum() / a.sum()) for a, b in sides])
        influences = np.mean([len(a) * (b / b.sum() - a / a.sum()) for a, b in sides], 0)
        return cls(values, influences)


def interval(terms: Sequence[tuple[float, LogRatio]], pool: Sequence[LogRatio]) -> Interval:
    """exp(sum of weight times ln ratio), with its 95 % interval.

    Args:
        terms: weights and ratios.
        pool: ratios whose spread over seeds is that of each term. With one seed each, nothing is decided: the interval
            is then 0 to infinity.
    """
    value = sum(weight * float(each.values.mean()) for weight, each in terms)
    freedom = sum(len(each.values) - 1 for each in pool)
    if not freedom:
        return Interval(math.exp(value), 0.0, math.inf, USUAL)
    seeds = sum(float(np.square(each.values - each.values.mean()).sum()) for each in pool) / freedom
    influences_U = np.sum([weight * each.influences for weight, each in terms], 0)
    variance = float(influences_U.var(ddof=1)) / len(influences_U)
    variance += seeds * sum(weight**2 / len(each.values) for weight, each in terms)
    reach = T_95[min(freedom, len(T_95)) - 1] * math.sqrt(variance)
    return Interval(math.exp(value), math.exp(value - reach), math.exp(value + reach), USUAL)


def comparable(judge: Callable[[Groups], Outcome]) -> Callable[[Groups], Outcome]:
    """A rule that decides nothing on rows of several places, nor if one learner diverged."""

    @wraps(judge)
    def judged(rows: Groups) -> Outcome:
        every = [row for each in rows.values() for row in each]
        if reasons := places(every):
            return undecided("not compared", "; ".join(reasons))
        if any(diverged(row) for row in every if row["cell"]["learners"] == 1):
            return undecided("one learner diverged", "one learner diverged")
        return judge(rows)

    return judged


def places(rows: Sequence[Row]) -> list[str]:
    """Reasons for which some rows cannot be compared, whatever their frames."""
    return sorted({elsewhere(rows[0], row) for row in rows} - {""})


def lost(pairs: Sequence[Pair]) -> bool:
    """True if a run that is compared diverged."""
    return any(diverged(row) for _, row in pairs)
