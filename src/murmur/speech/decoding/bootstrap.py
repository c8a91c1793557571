"""Bootstrap intervals of error rates (Bisani & Ney, "Bootstrap estimates for confidence intervals", ICASSP 2004).

The bootstrap draws utterances, or whole speakers if a `group_of` is given, with replacement; the rate of each draw is
sum(errors) / sum(tokens). Speakers are the right unit if few of them speak many utterances each.

B replications, S sampling units (utterances or speakers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from murmur.core.counted import counted
from murmur.speech.decoding.error_rate import ErrorRate, score_by_group, shown, total_of

_DRAWS_AT_ONCE = 4_000_000  # entries of one block of multiplicities: 32 MB


@dataclass(frozen=True)
class Interval:
    """Percentile interval of a bootstrapped figure: `low` to `high` covers `coverage` of the replications."""

    value: float
    low: float
    high: float
    coverage: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Comparison:
    """Paired bootstrap of two systems on the same utterances.

    `difference`: percent of the second minus percent of the first, so negative means that the second is better.
    `second_better`: fraction of replications in which the second makes fewer errors (ties count half).
    """

    first: ErrorRate
    second: ErrorRate
    difference: Interval
    second_better: float


def interval(
    scores: Mapping[str, ErrorRate],
    group_of: Mapping[str, str] | None = None,
    coverage: float = 0.95,
    replications: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval of the error rate in percent.

    `scores` is per utterance (`score_utterances`); `group_of[utterance]`, if given, makes speakers the units drawn.
    Raises ValueError for no scores, no tokens, a coverage outside (0, 1), fewer than 1 replication or a missing group.
    """
    errors_S, tokens_S = _units(scores, group_of)
    (draws_B,) = _percent_of_draws(tokens_S, [errors_S], replications, seed)
    return _percentiles(100.0 * errors_S.sum() / tokens_S.sum(), draws_B, coverage)


def compare(
    first: Mapping[str, ErrorRate],
    second: Mapping[str, ErrorRate],
    group_of: Mapping[str, str] | None = None,
    coverage: float = 0.95,
    replications: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Paired bootstrap: both systems are scored on the same draws, so the difficulty of an utterance cancels.

    Raises ValueError as `interval` does, and if the systems were scored on different utterances or references.
    """
    different = sorted(n for n in set(first) | set(second) if _tokens(first, n) != _tokens(second, n))
    if different:
        raise ValueError(f"the two systems have different references for {shown(different)}: score both on one set")
    errors_S, tokens_S = _units(first, group_of)
    other_S, _ = _units(second, group_of)
    first_B, second_B = _percent_of_draws(tokens_S, [errors_S, other_S], replications, seed)
    value = 100.0 * (other_S.sum() - errors_S.sum()) / tokens_S.sum()
    better = float(np.mean(second_B < first_B) + 0.5 * np.mean(second_B == first_B))
    difference = _percentiles(value, second_B - first_B, coverage)
    unit = next(iter(first.values())).unit
    return Comparison(total_of(first.values(), unit), total_of(second.values(), unit), difference, better)


def _tokens(scores: Mapping[str, ErrorRate], name: str) -> int | None:
    return scores[name].tokens if name in scores else None


def _units(scores: Mapping[str, ErrorRate], group_of: Mapping[str, str] | None) -> tuple[np.ndarray, np.ndarray]:
    rates = score_by_group(scores, group_of) if group_of is not None else dict(sorted(scores.items()))
    errors_S = np.array([rate.errors for rate in rates.values()], dtype=np.int64)
    tokens_S = np.array([rate.tokens for rate in rates.values()], dtype=np.int64)
    if tokens_S.sum() == 0:
        raise ValueError(f"no reference tokens in {counted(len(scores), 'utterance')}: an interval needs transcripts")
    return errors_S, tokens_S


def _percent_of_draws(
    tokens_S: np.ndarray, errors_of_systems: list[np.ndarray], replications: int, seed: int
) -> list[np.ndarray]:
    """Error rate in percent by replication and system; all systems use the same draws."""
    if replications < 1:
        raise ValueError(f"{replications} bootstrap replications: at least 1 is needed, 1,000 for a usable interval")
    units = len(tokens_S)
    random = np.random.default_rng(seed)
    columns = np.stack([tokens_S, *errors_of_systems], axis=1)
    block = max(1, _DRAWS_AT_ONCE // units)
    sums = []
    for start in range(0, replications, block):
        times_BS = random.multinomial(units, np.full(units, 1.0 / units), size=min(block, replications - start))
        sums.append(times_BS @ columns)
    sums_BC = np.concatenate(sums)
    # A draw of empty references only has no rate; such a set is tiny, and one token keeps the arithmetic finite.
    tokens_B = np.maximum(sums_BC[:, 0], 1)
    return [100.0 * sums_BC[:, 1 + k] / tokens_B for k in range(len(errors_of_systems))]


def _percentiles(value: float, draws_B: np.ndarray, coverage: float) -> Interval:
    if not 0.0 < coverage < 1.0:
        raise ValueError(f"coverage {coverage} of an interval: give a fraction between 0 and 1, such as 0.95")
    low, high = np.quantile(draws_B, [(1 - coverage) / 2, (1 + coverage) / 2])
    return Interval(float(value), float(low), float(high), coverage)
