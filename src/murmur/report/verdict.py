"""The page's first line, which names the best run, and the caveats beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from murmur.report.figures import logprob
from murmur.report.read import Headline, Run
from murmur.report.recognised import RecognisedUtterance

DRAWS, SEED = 5000, 0
FEW_SPEAKERS = 8  # with fewer, the bootstrap resamples utterances
MOST_NAMED = 3


@dataclass(frozen=True)
class Difference:
    """Word error rate of one run minus that of another on the same utterances, in points, with its 95 % interval."""

    points: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        """True if zero lies outside the interval."""
        return self.low > 0 or self.high < 0


def ranking(runs: Sequence[Run]) -> list[Run]:
    """Runs with an error rate first, the lowest at the top; then the others, the best held-out figures first."""

    def key(run: Run) -> tuple[float, float]:
        found = last_logprob(run)
        return run.headline.percent if run.headline else math.inf, math.inf if found is None else -found

    return sorted(runs, key=key)


def last_logprob(run: Run) -> float | None:
    """Held-out log-probability at the last evaluation."""
    return logprob(run.records.evaluations[-1]) if run.records.evaluations else None


def headline(ranked: Sequence[Run]) -> str:
    """The page's first line."""
    best = ranked[0]
    if best.headline is None:
        found = last_logprob(best)
        least = "nothing held-out yet" if found is None else f"held-out log-probability {found:.4f}"
        return f"{f'Best: {best.name},' if len(ranked) > 1 else f'{best.name}:'} {least}; no word error rate"
    rated = [run for run in ranked if run.headline is not None]
    if any(other_test(best, run) for run in rated[1:]):
        return f"Tested on different utterances: {_told(rated)}"
    alike = [run for run in rated[1:] if not differ(best, run)]
    if not alike:
        who = f"Winner: {best.name}," if len(rated) > 1 else f"{best.name}:"
        return f"{who} word error rate {written(best.headline)}"
    if all(run.headline is not None and run.headline.low is not None for run in (best, *alike)):
        return f"No difference beyond chance in word error rate: {_told([best, *alike])}"
    return f"Lowest: {best.name}, word error rate {written(best.headline)}; without intervals chance is not excluded"


def _told(rated: Sequence[Run]) -> str:
    """The first few runs with their error rates."""
    told = [f"{run.name} {written(run.headline)}" for run in rated if run.headline is not None]
    more = f" and {len(told) - MOST_NAMED} more" if len(told) > MOST_NAMED else ""
    return f"{', '.join(told[:MOST_NAMED])}{more}"


def written(rate: Headline) -> str:
    """A rate and its interval."""
    spread = "" if rate.low is None or rate.high is None else f" (95 % interval {rate.low:.2f} to {rate.high:.2f} %)"
    return f"{rate.percent:.2f} %{spread}"


def differ(best: Run, other: Run) -> bool:
    """True if two error rates differ by more than chance: paired if both list their utterances, else by intervals.

    False if neither comparison is possible.
    """
    paired = difference(best.utterances, other.utterances)
    if paired is not None:
        return paired.certain
    one, two = best.headline, other.headline
    return one is not None and two is not None and None not in (one.low, two.low) and not one.overlaps(two)


def other_test(first: Run, second: Run) -> bool:
    """True if both runs list their test utterances, and names or references differ."""
    ours, theirs = ({u.name: u.reference for u in run.utterances} for run in (first, second))
    return bool(ours and theirs) and ours != theirs


def difference(first: Sequence[RecognisedUtterance], second: Sequence[RecognisedUtterance]) -> Difference | None:
    """Paired bootstrap: both runs are scored on the same draws of speakers, or of utterances if speakers are few.

    The percentile interval of (errors of second - errors of first) / words over DRAWS draws, in points (Bisani and Ney,
    ICASSP 2004). None if they were not tested on the same utterances, or no word was said.
    """
    ours, theirs = {u.name: u for u in first}, {u.name: u for u in second}
    if (
        not ours
        or any(u.reference != theirs[n].reference for n, u in ours.items() if n in theirs)
        or ours.keys() != theirs.keys()
    ):
        return None
    speakers = {u.speaker for u in first}
    units: dict[str, list[int]] = {}
    for name, mine in ours.items():
        unit = units.setdefault(mine.speaker if len(speakers) >= FEW_SPEAKERS else name, [0, 0])
        unit[0] += mine.words
        unit[1] += theirs[name].errors - mine.errors
    counts = np.array([units[unit] for unit in sorted(units)], dtype=np.int64)
    words, errors = (int(total) for total in counts.sum(axis=0))
    if words == 0:
        return None
    random = np.random.default_rng(SEED)
    draws = np.stack([counts[random.integers(0, len(counts), len(counts))].sum(axis=0) for _ in range(DRAWS)])
    low, high = np.quantile(100 * draws[:, 1] / np.maximum(draws[:, 0], 1), [0.025, 0.975])
    return Difference(100 * errors / words, float(low), float(high))


def notes(ranked: Sequence[Run]) -> list[str]:
    """The caveats beside the first line."""
    rated = [run for run in ranked if run.headline is not None]
    said = []
    if rated and rated[0].headline is not None:
        system, _, part = rated[0].headline.name.removesuffix("wer").strip().rpartition(" ")
        said.append(f"Measured on {part or 'test'}{system and ', by the '}{system}.")
    for run in rated[1 : 1 + MOST_NAMED]:
        paired = difference(rated[0].utterances, run.utterances)
        if paired is not None:
            said.append(
                f"The word error rate of {run.name} differs by {paired.points:+.2f} points from that of {rated[0].name}"
                f" (95 % interval {paired.low:+.2f} to {paired.high:+.2f}, paired bootstrap on the same utterances)."
            )
    close = [
        run.name
        for run in rated[1:]
        if run.headline and rated[0].headline and run.headline.overlaps(rated[0].headline)
        if not other_test(rated[0], run)
    ]
    if close:
        said.append(f"The interval overlaps with that of {', '.join(close)}.")
    elif len(ranked) > 1 and not rated:
        said.append("Held-out figures have no interval: a difference between single runs may be chance.")
    return said + circumstances(ranked)


def circumstances(ranked: Sequence[Run]) -> list[str]:
    """Notes on runs that are simulated, have diverged or are unfinished."""
    said = []
    simulated = [run for run in ranked if run.simulated]
    if simulated:
        which = "" if len(simulated) == len(ranked) else f" ({', '.join(run.name for run in simulated)})"
        kinds = ", ".join(dict.fromkeys(f"{run.learners} learners, {run.simulated.get('kind')}" for run in simulated))
        said.append(
            f"Simulated{which}: gradients are real, seconds and bytes are those of a modelled cluster: {kinds}."
        )
    diverged = [run.name for run in ranked if run.records.diverged]
    if diverged:
        said.append(
            f"Training has diverged: {', '.join(diverged)}. Lower the learning rate, warm it up, or bound gradients."
        )
    unfinished = [run.name for run in ranked if not run.score and run.simulated.get("tested", True)]
    if unfinished:
        said.append(f"Not finished, so without an error rate: {', '.join(unfinished)}.")
    return said
