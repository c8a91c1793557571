"""Rosciszewski and Kaliski 2017: the best frequency of averaging models.

Eight learners with Kaldi's parameter averaging: natural gradient, max-change, estimates that restart at every average,
the newest models combined, the rate falling to a tenth. Iterations of 25,000 to 1.6 million frames of all learners
together. The best range holds the frequency with the highest mean log-probability per frame of the correct paths. It
also holds every frequency whose loss, divided by the loss of that frequency, has an interval that includes 1. Trials
have all frames, because a quarter of the frames has no average at the lowest frequency.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

from murmur_papers.studies.base import CTC, CTC_ADAM
from murmur_papers.studies.run import MissingRun
from murmur_papers.studies.study import (
    FURTHER_SEEDS,
    SEEDS,
    Claim,
    Group,
    Groups,
    Outcome,
    Study,
    System,
    beyond,
    further_seeds,
    undecided,
)
from murmur_papers.studies.verdicts import (
    fast,
    holds,
    mean_loss,
    not_alike,
    ratio,
    reach,
    shown,
    together,
    wer,
    wer_difference,
)

LEARNERS, MACHINES = 8, "rosciszewski2017"
FREQUENCIES = (25_000, 100_000, 400_000, 1_600_000)
NAMES = {f"{frames:,} frames": frames for frames in FREQUENCIES}
ALONE = "one learner"
RECORD = Path("results/bench/averaging_frequency.json")
PAPER_FRAMES, PUBLISHED = 600_000, 54.9
TRIALS = (1.0, 0.25)  # each of eight jobs takes eight times the rate of its share, as Kaldi does, or twice


def _averaging(frames: int) -> System:
    strategy = f"ParameterAveraging({frames / LEARNERS}, Jobs({LEARNERS}), rate='by jobs')"
    change = {"strategy": strategy, "learners": LEARNERS, "machines": MACHINES}
    return System(CTC, change, trials=TRIALS, part=1, decoded=SEEDS)


def best_range(rows: Groups) -> list[str]:
    """The frequencies in the best range, by the rule above, the best one first; none if they cannot be compared."""
    blocks = _blocks(rows)
    if not any(blocks.values()):
        return []
    best = min(blocks, key=lambda name: mean_loss(blocks[name]))
    return [best, *(name for name in blocks if name != best and ratio(rows[best], rows[name]).low <= 1)]


def _blocks(rows: Groups) -> Groups:
    """The rows of all frequencies at the seeds at which they can be compared."""
    names = [name for name in NAMES if name in rows]
    return dict(zip(names, together([rows[name] for name in names])[0], strict=True))


def quality(rows: Groups) -> Outcome:
    chosen = best_range(rows)
    if not chosen:
        return undecided("not compared", "no seed has all frequencies on one device")
    each = ", ".join(f"{name} {-mean_loss(found):.4f}" for name, found in _blocks(rows).items())
    others = ", ".join(f"{name} {shown(ratio(rows[chosen[0]], rows[name]))}" for name in NAMES if name != chosen[0])
    told = f"{LEARNERS} learners: {fast(rows[chosen[0]])} with averages every {chosen[0]}, the best"
    return Outcome(
        f"{told} of {len(NAMES)}; in the best range are {len(chosen)}",
        not_alike([rows[name] for name in NAMES]) if len(chosen) < len(NAMES) else "undecided",
        f"best range: {'; '.join(chosen)}; log-probability a frame: {each}; loss over that of {chosen[0]}: {others};"
        f" loss of {chosen[0]} over that of one learner {shown(ratio(rows[ALONE], rows[chosen[0]]))}",
    )


def words(rows: Groups) -> Outcome:
    chosen, blocks = best_range(rows), _blocks(rows)
    decoded = {name: rate for name in NAMES if (rate := wer(blocks[name])) is not None}
    if not chosen or not decoded:
        return undecided("not compared", "no seed has all frequencies on one device, decoded")
    fewest = min(decoded, key=lambda name: decoded[name].value)
    most = max(decoded, key=lambda name: decoded[name].value)
    told = "; ".join(f"{name} {w.value:.1f} % ({w.low:.1f} to {w.high:.1f})" for name, w in decoded.items())
    near = wer_difference(rows[chosen[0]], rows[fewest])
    open_ended = len(chosen) == len(NAMES) or (near.low <= 0 <= near.high and fewest not in chosen)
    return Outcome(
        f"{LEARNERS} learners: fewest with averages every {fewest}, most every {most}:"
        f" WER {shown(wer_difference(rows[fewest], rows[most]))}",
        "undecided" if open_ended else holds(fewest in chosen),
        f"intervals over utterances alone: {told}",
    )


def _shares(record: Path) -> dict[int, float]:
    """Percent of the time saved by learners that stay alive, by the frames of an iteration, the fewest first."""
    figures = json.loads(record.read_text(encoding="utf-8"))["figures"]
    ours, jobs = figures["ours"], figures["job per iteration, processes"]
    if str(PAPER_FRAMES) not in ours:
        raise MissingRun(f"{record} has no iteration of {PAPER_FRAMES:,} frames")
    return {n: 100 * (1 - ours[str(n)]["seconds"] / jobs[str(n)]["seconds"]) for n in sorted(map(int, ours))}


def greater(rows: Groups, record: Path = RECORD) -> Outcome:  # noqa: ARG001 - from the record of a benchmark
    """Judge that the time saved falls with rarer averages, from the record of real processes."""
    shares = _shares(record)
    ordered = list(shares.values())
    falls = ordered == sorted(ordered, reverse=True) and ordered[-1] > 0
    return Outcome("2 learners: " + ", ".join(f"{share:.0f} % at {n:,}" for n, share in shares.items()), holds(falls))


def saved(rows: Groups, record: Path = RECORD) -> Outcome:  # noqa: ARG001 - from the same record
    share = _shares(record)[PAPER_FRAMES]
    found, theirs = (1 / (1 - percent / 100) for percent in (share, PUBLISHED))
    return Outcome(
        f"2 learners: {share:.0f} % less time, {found:.2f} times as fast (theirs {theirs:.2f})",
        holds(found >= theirs),
        f"two learners of one host, real processes ({record.name}, older than this rule), whose gradients are pauses of"
        " a device of 60,000 frames a second",
        reach(found, theirs),
    )


def parts(rows: Groups, record: Path = RECORD) -> str:  # noqa: ARG001 - from the same record
    """Seconds of an iteration with one part of the gain switched off at a time, and the share on faster devices."""
    figures, frames = json.loads(record.read_text(encoding="utf-8"))["figures"], str(PAPER_FRAMES)
    sides = {name: side[frames]["seconds"] for name, side in figures.items() if frames in side}
    told = ", ".join(f"{name} {spent:.1f} s" for name, spent in sides.items())
    faster = figures[f"at {PAPER_FRAMES // 1000}k"]["reductions_by_speed"]
    by_speed = ", ".join(f"{100 * each['with start-up']:.0f} % at {int(n):,}" for n, each in faster.items())
    gradient = figures["ours"][frames]["compute"]
    return (
        f"an iteration of {PAPER_FRAMES:,} frames: {told}, of which gradients {gradient:.1f} s; reading and averaging"
        " through files cost little on one host, so that the start of processes is most of the gain. Its share depends"
        f" on the speed of a device; with the same costs beside gradients it is, by frames a second, {by_speed}"
    )


AVERAGING = {name: _averaging(frames) for name, frames in NAMES.items()}
GROUPS: dict[str, Group] = {
    ALONE: CTC,
    **AVERAGING,
    **further_seeds({name: replace(each, decoded=FURTHER_SEEDS) for name, each in AVERAGING.items()}),
    "one learner, Adam": CTC_ADAM,
    **beyond(CTC_ADAM, seeds=SEEDS[:1], learners=LEARNERS, machines=MACHINES),
}
STUDY = Study(
    "frequency",
    "Rosciszewski and Kaliski 2017",
    "Rosciszewski, Kaliski: Minimizing distribution and data loading overheads in parallel training of DNN acoustic"
    " models with frequent parameter averaging (HPCS 2017)",
    "eight learners, LSTM with CTC on AN4, averages every 25,000 to 1.6 million frames of all learners; three seeds,"
    " decoded. The first average keeps the best learner alone; the last model is the best combination on dev of the"
    " newest ones",
    GROUPS,
    (
        Claim(
            '"there is a certain range of averaging frequencies that are optimal for the model efficiency"',
            "600,000 frames an iteration and learner were chosen, of 36 million (5,000 stand for an utterance)",
            "better if the frequencies are not all alike (5 %, F test over seeds), and the best range by held-out"
            " log-probability is not all of them; else undecided",
            (ALONE, *NAMES),
            quality,
            further=tuple(NAMES),
        ),
        Claim(
            '"as well as word error rates of test set decodings"',
            "the rates could not be read",
            "reached if the frequency with the fewest word errors is in that range; undecided if the range is all of"
            " them, or if it is not in the range, but does not differ from its best (95 %)",
            tuple(NAMES),
            words,
            further=tuple(NAMES),
        ),
        Claim(
            '"The impact of the proposed optimizations is greater for the more frequent neural network model'
            ' averaging"',
            "",
            "the share of the time that is saved falls from each frequency to the next lower one",
            (),
            partial(greater),
        ),
        Claim(
            '"For the selected averaging frequency of 600k frames per iteration the proposed optimizations reduce the'
            ' training time by 54.9%"',
            f"{PUBLISHED} %",
            "at least as many times as fast as with a job for each iteration",
            (),
            partial(saved),
            cause=partial(parts),
        ),
    ),
    MACHINES,
)
