"""Significance of differences between runs: t intervals over seeds, paired bootstrap over utterances or speakers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from murmur.speech.decoding.bootstrap import Comparison, Interval, compare, interval
from murmur.speech.decoding.error_rate import ErrorRate

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

    Raises:
        ValueError: fewer than two pairs, or sides of unequal length.
    """
    logs = [math.log(b / a) for a, b in zip(first, second, strict=True)]
    if len(logs) < 2:
        raise ValueError("a single pair has no spread: an interval over seeds needs at least two")
    mean = statistics.mean(logs)
    table = STUDENT[level]
    reach = table[min(len(logs) - 2, len(table) - 1)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), level)


def equal_chance(groups: Sequence[Sequence[float]]) -> float:
    """The p-value of the hypothesis that all groups have the same mean: an F test with seeds as blocks.

    F = (n sum_g (m_g - m)^2 / (k - 1)) / (sum of squared residuals / ((k - 1) (n - 1))),  k groups of n values.

    Args:
        groups: values of each group, one a seed, in the same order of seeds.

    Raises:
        ValueError: groups of unequal length, fewer than two groups, or fewer than two values a group.
    """
    blocks, k = list(zip(*groups, strict=True)), len(groups)
    free = (k - 1) * (len(blocks) - 1)
    if free < 1:
        raise ValueError(f"{k} groups of {len(blocks)} values: an F test needs at least two of each")
    means, sides = [statistics.mean(group) for group in groups], [statistics.mean(block) for block in blocks]
    whole = statistics.mean(means)
    between = len(blocks) * sum((mean - whole) ** 2 for mean in means)
    pairs = (
        (value, mean + side)
        for group, mean in zip(groups, means, strict=True)
        for value, side in zip(group, sides, strict=True)
    )
    left = sum((value - both + whole) ** 2 for value, both in pairs)
    if not between + left:
        return 1.0
    return _incomplete_beta(left / (left + between), free / 2, (k - 1) / 2)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function I_x(a, b); 2 a and 2 b are whole numbers.

    I_x(p, q + 1) = I_x(p, q) + x^p (1 - x)^q / (q B(p, q)),    I_x(p + 1, q) = I_x(p, q) - x^p (1 - x)^q / (p B(p, q))
    """
    p, q = 1 - a % 1, 1 - b % 1
    value = {
        (0.5, 0.5): 2 / math.pi * math.asin(math.sqrt(x)),
        (0.5, 1.0): math.sqrt(x),
        (1.0, 0.5): 1 - math.sqrt(1 - x),
        (1.0, 1.0): x,
    }[p, q]
    while q < b:
        value, q = value + x**p * (1 - x) ** q / (q * _complete_beta(p, q)), q + 1
    while p < a:
        value, p = value - x**p * (1 - x) ** q / (p * _complete_beta(p, q)), p + 1
    return value


def _complete_beta(a: float, b: float) -> float:
    return math.gamma(a) * math.gamma(b) / math.gamma(a + b)


def difference(
    first: Mapping[int, Errors], second: Mapping[int, Errors], speakers: Mapping[str, str] | None = None
) -> Comparison:
    """Paired bootstrap of word error rates over the seeds of both sides; an utterance is drawn with all of them.

    Raises:
        ValueError: no common seed, or different utterances on the two sides.
    """
    seeds = sorted(first.keys() & second.keys())
    rates = [_by_seed({seed: side[seed] for seed in seeds}) for side in (first, second)]
    return compare(rates[0], rates[1], _groups(rates[0], speakers))


def spread(runs: Mapping[int, Errors], speakers: Mapping[str, str] | None = None) -> Interval:
    """Word error rate over all seeds, with its bootstrap interval.

    Raises:
        ValueError: nothing was recognised.
    """
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
