"""Error rates: counts of edit errors, their sums, bootstrap intervals, and t intervals over seeds.

The bootstrap (Bisani & Ney, "Bootstrap estimates for confidence intervals", ICASSP 2004) draws utterances, or whole
speakers if a `group_of` is given, with replacement; the rate of each draw is sum(errors) / sum(tokens). Speakers are
the right unit if few of them speak many utterances each. Without any error all draws are equal, and the interval is
that of Clopper and Pearson ("The use of confidence or fiducial limits illustrated in the case of the binomial",
Biometrika 1934) for independent words: 0 to 1 - (alpha / 2)^(1 / words).

B replications, S sampling units (utterances or speakers), N seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from murmur.core.counted import counted, named

Unit = Literal["word", "char"]


@dataclass(frozen=True)
class ErrorRate:
    """Edit errors over reference tokens. `str()` gives Kaldi's line, `%WER 1.23 [ 12 / 975, 3 ins, 4 del, 5 sub ]`."""

    tokens: int
    insertions: int = 0
    deletions: int = 0
    substitutions: int = 0
    unit: Unit = "word"

    @property
    def errors(self) -> int:
        return self.insertions + self.deletions + self.substitutions

    @property
    def percent(self) -> float:
        """100 * errors / tokens; without reference tokens, 0.0 if there are no errors, else infinite."""
        if self.tokens:
            return 100.0 * self.errors / self.tokens
        return float("inf") if self.errors else 0.0

    def __add__(self, other: ErrorRate) -> ErrorRate:
        if self.unit != other.unit:
            raise ValueError(
                f"cannot add a {other.unit} error rate to a {self.unit} error rate: score both in one unit"
            )
        return ErrorRate(
            self.tokens + other.tokens,
            self.insertions + other.insertions,
            self.deletions + other.deletions,
            self.substitutions + other.substitutions,
            self.unit,
        )

    def __str__(self) -> str:
        name = "%WER" if self.unit == "word" else "%CER"
        counts = f"{self.insertions} ins, {self.deletions} del, {self.substitutions} sub"
        return f"{name} {self.percent:.2f} [ {self.errors} / {self.tokens}, {counts} ]"


def score_by_group(scores: Mapping[str, ErrorRate], group_of: Mapping[str, str]) -> dict[str, ErrorRate]:
    """Error rate of each speaker or subset: per-utterance scores summed by `group_of[utterance]`, groups sorted.

    Raises ValueError if utterances have no group; the message names them.
    """
    missing = sorted(set(scores) - set(group_of))
    if missing:
        raise ValueError(f"no group given for {shown(missing)}: every scored utterance needs one (see utt2spk)")
    members: dict[str, list[ErrorRate]] = {}
    for name, rate in scores.items():
        members.setdefault(group_of[name], []).append(rate)
    return {group: total_of(rates, rates[0].unit) for group, rates in sorted(members.items())}


def total_of(rates: Iterable[ErrorRate], unit: Unit = "word") -> ErrorRate:
    """Sum of error rates of one unit; no errors in no tokens if there are none."""
    return sum(rates, ErrorRate(0, unit=unit))


def shown(names: list[str]) -> str:
    """Number of utterances and the first few of their names, for a message."""
    return f"{counted(len(names), 'utterance')}: {named(names)}"


_DRAWS_AT_ONCE = 4_000_000  # entries of one block of multiplicities: 32 MB


@dataclass(frozen=True)
class Interval:
    """Interval of a figure. Of a bootstrapped one, `low` to `high` covers `coverage` of the replications."""

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
    """Percentile bootstrap interval of the error rate in percent; the exact binomial one if there is no error.

    `scores` is per utterance (`score_utterances`); `group_of[utterance]`, if given, makes speakers the units drawn.
    Raises ValueError for no scores, no tokens, a coverage outside (0, 1), fewer than 1 replication or a missing group.
    """
    errors_S, tokens_S = _units(scores, group_of)
    (draws_B,) = _percent_of_draws(tokens_S, [errors_S], replications, seed)
    found = _percentiles(100.0 * errors_S.sum() / tokens_S.sum(), draws_B, coverage)
    if errors_S.any():
        return found
    return replace(found, high=100.0 * (1.0 - ((1.0 - coverage) / 2.0) ** (1.0 / float(tokens_S.sum()))))


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
    _refuse_different(first, second)
    errors_S, tokens_S = _units(first, group_of)
    other_S, _ = _units(second, group_of)
    first_B, second_B = _percent_of_draws(tokens_S, [errors_S, other_S], replications, seed)
    value = 100.0 * (other_S.sum() - errors_S.sum()) / tokens_S.sum()
    better = float(np.mean(second_B < first_B) + 0.5 * np.mean(second_B == first_B))
    difference = _percentiles(value, second_B - first_B, coverage)
    unit = next(iter(first.values())).unit
    return Comparison(total_of(first.values(), unit), total_of(second.values(), unit), difference, better)


def _refuse_different(first: Mapping[str, ErrorRate], second: Mapping[str, ErrorRate]) -> None:
    different = sorted(n for n in set(first) | set(second) if _tokens(first, n) != _tokens(second, n))
    if different:
        raise ValueError(f"the two systems have different references for {shown(different)}: score both on one set")


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


# Student's t of two-sided intervals, by degrees of freedom from 1 on.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)
T_97 = (25.452, 6.205, 4.177, 3.495, 3.163, 2.969, 2.841, 2.752, 2.685, 2.634)  # 97.5 %
STUDENT = {0.95: T_95, 0.975: T_97}
FEW_SPEAKERS = 8  # with fewer, the bootstrap resamples utterances instead
Errors = Mapping[str, tuple[int, int]]  # utterance -> (errors, words)


def paired(first: Iterable[float], second: Iterable[float], level: float = 0.95) -> Interval:
    """Mean of second / first (geometric) with its t interval over pairs of positive numbers.

    Args:
        first: values of the reference, one a seed.
        second: values that are compared with them, in the same order of seeds.
        level: probability of the interval, 0.95 or 0.975.
    """
    logs = [math.log(b / a) for a, b in zip(first, second, strict=True)]
    if len(logs) < 2:
        raise ValueError("a single pair has no spread: an interval over seeds needs at least two")
    mean = statistics.mean(logs)
    table = STUDENT[level]
    reach = table[min(len(logs) - 2, len(table) - 1)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), level)


def difference(
    first: Mapping[int, Errors], second: Mapping[int, Errors], speakers: Mapping[str, str] | None = None
) -> Comparison:
    """Paired bootstrap of word error rates over the seeds of both sides; an utterance is drawn with all of them."""
    seeds = sorted(first.keys() & second.keys())
    rates = [_by_seed({seed: side[seed] for seed in seeds}) for side in (first, second)]
    return compare(rates[0], rates[1], _groups(rates[0], speakers))


def difference_over_seeds(
    first: Mapping[int, Errors],
    second: Mapping[int, Errors],
    speakers: Mapping[str, str] | None = None,
    coverage: float = 0.95,
    replications: int = 10_000,
) -> Interval:
    """Percent of the second system less percent of the first, with an interval over seeds and sampling units.

    A draw of units gives each of the n common seeds s a difference d_s. Training adds its noise by Student's t with
    n - 1 degrees of freedom: the replication is mean_s d_s + t sd_s(d_s) / sqrt(n). To draw seeds instead would be too
    narrow: the interval of three of them ends at the largest and the smallest, which hold the mean in 75 % of cases.

    Args:
        first, second: errors of the two systems by seed; all runs have the same tokens.
        speakers: speaker of each utterance, which are the units if there are enough; else utterances are.

    Raises:
        ValueError: fewer than two common seeds, or as `compare` does.
    """
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) < 2:
        raise ValueError(f"{counted(len(seeds), 'common seed')}: an interval over seeds needs at least two")
    rates = [_by_seed({0: side[seed]}) for side in (first, second) for seed in seeds]
    for other in rates[1:]:
        _refuse_different(rates[0], other)
    groups = _groups(rates[0], speakers)
    tokens_S = _units(rates[0], groups)[1]
    percents = np.stack(_percent_of_draws(tokens_S, [_units(r, groups)[0] for r in rates], replications, seed=0))
    apart_NB = percents[len(seeds) :] - percents[: len(seeds)]
    t_B = np.random.default_rng(1).standard_t(len(seeds) - 1, replications)
    draws_B = apart_NB.mean(0) + t_B * apart_NB.std(0, ddof=1) / math.sqrt(len(seeds))
    whole = [total_of(side.values()).percent for side in rates]
    value = statistics.fmean(whole[len(seeds) :]) - statistics.fmean(whole[: len(seeds)])
    return _percentiles(value, draws_B, coverage)


def spread(runs: Mapping[int, Errors], speakers: Mapping[str, str] | None = None) -> Interval:
    """Word error rate over all seeds, with its bootstrap interval."""
    rates = _by_seed(runs)
    return interval(rates, _groups(rates, speakers))


def _by_seed(runs: Mapping[int, Errors]) -> dict[str, ErrorRate]:
    return {
        f"{name} {seed}": ErrorRate(words, substitutions=errors)
        for seed, run in runs.items()
        for name, (errors, words) in run.items()
    }


def _groups(rates: Iterable[str], speakers: Mapping[str, str] | None) -> dict[str, str]:
    """The units of the bootstrap: speakers if there are enough, else each utterance with all its seeds."""
    told = speakers or {}
    whole = len(set(told.values()) - {""}) >= FEW_SPEAKERS and "" not in told.values()
    names = {key: key.rpartition(" ")[0] for key in rates}
    return {key: told[name] if whole else name for key, name in names.items()}


def errors_of(lines: Sequence[Mapping[str, object]]) -> tuple[Errors, dict[str, str]]:
    """Errors and speakers by utterance, from the lines of a run's recognised.jsonl."""
    errors = {str(line["utterance"]): (int(str(line["errors"])), int(str(line["words"]))) for line in lines}
    return errors, {str(line["utterance"]): str(line["speaker"]) for line in lines}
