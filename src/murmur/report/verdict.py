"""The page's first line, which names the best run, and the caveats beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from murmur.report import error_rate
from murmur.report.error_rate import Interval
from murmur.report.read import Headline, Run
from murmur.report.recognised import RecognisedUtterance

MOST_NAMED = 3
EQUAL_TIMES = 1.05  # training times within this factor are told as equal


def ranking(runs: Sequence[Run]) -> list[Run]:
    """Runs with an error rate first, the lowest at the top; then the others, the best held-out figures first."""

    def key(run: Run) -> tuple[float, float]:
        found = last_logprob(run)
        return run.headline.percent if run.headline else math.inf, math.inf if found is None else -found

    return sorted(runs, key=key)


def last_logprob(run: Run) -> float | None:
    return run.records.evaluations[-1].logprob if run.records.evaluations else None


def headline(ranked: Sequence[Run]) -> str:
    return _of_errors(ranked) + _of_time(ranked)


def _of_time(runs: Sequence[Run]) -> str:
    """The longest training time against the shortest one; empty where these are not of one kind, real or virtual."""
    timed = sorted((run for run in runs if run.records.last_seconds > 0), key=lambda run: run.records.last_seconds)
    if len(timed) < 2 or len({bool(run.simulated) for run in timed}) > 1:
        return ""
    ratio = timed[-1].records.last_seconds / timed[0].records.last_seconds
    if ratio < EQUAL_TIMES:
        return f"; training took equally long, within {100 * (EQUAL_TIMES - 1):.0f} %"
    virtual = ", in virtual seconds" if timed[0].simulated else ""
    return f"; {timed[-1].name} trained {ratio:.2f} times as long as {timed[0].name}{virtual}"


def _of_errors(ranked: Sequence[Run]) -> str:
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
    spread = "" if rate.low is None or rate.high is None else f" (95 % interval {rate.low:.2f} to {rate.high:.2f} %)"
    return f"{rate.percent:.2f} %{spread}"


def differ(best: Run, other: Run) -> bool:
    """True if two error rates differ by more than chance: paired if both list their utterances, else by intervals.

    False if neither comparison is possible.
    """
    paired = difference(best.utterances, other.utterances)
    if paired is not None:
        return paired.low > 0 or paired.high < 0
    one, two = best.headline, other.headline
    return one is not None and two is not None and None not in (one.low, two.low) and not one.overlaps(two)


def other_test(first: Run, second: Run) -> bool:
    """True if both runs list their test utterances, and names or references differ."""
    ours, theirs = ({u.name: u.reference for u in run.utterances} for run in (first, second))
    return bool(ours and theirs) and ours != theirs


def difference(first: Sequence[RecognisedUtterance], second: Sequence[RecognisedUtterance]) -> Interval | None:
    """Word error rate of the second minus that of the first, in points, by a paired bootstrap.

    None if they were not tested on the same utterances, or no word was said.
    """
    ours, theirs = ({u.name: (u.reference, u.words) for u in each} for each in (first, second))
    if ours != theirs or not any(words for _, words in ours.values()):
        return None
    before, after = ({0: {u.name: (u.errors, u.words) for u in each}} for each in (first, second))
    return error_rate.difference(before, after, {u.name: u.speaker for u in first}).difference


def notes(ranked: Sequence[Run]) -> list[str]:
    """The caveats beside the first line."""
    rated = [run for run in ranked if run.headline is not None]
    said = []
    if rated and rated[0].headline is not None:
        system, _, part = rated[0].headline.name.removesuffix("wer").strip().rpartition(" ")
        said.append(f"Measured on {part or 'test'}{system and ', by the '}{system}.")
    for run in rated[1 : 1 + MOST_NAMED]:
        paired = difference(rated[0].utterances, run.utterances)
        if paired is not None and paired.low < paired.high:  # equal in each utterance: no draw tells them apart
            said.append(
                f"The word error rate of {run.name} differs by {paired.value:+.2f} points from that of {rated[0].name}"
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
