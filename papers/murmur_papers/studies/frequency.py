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
    BEYOND,
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
)
from murmur_papers.studies.verdicts import (
    holds,
    mean_loss,
    not_alike,
    ratio,
    shown,
    wer,
    wer_difference,
)

LEARNERS, MACHINES = 8, "rosciszewski2017"
FREQUENCIES = (25_000, 100_000, 400_000, 1_600_000)
NAMES = {f"{frames:,} frames": frames for frames in FREQUENCIES}
ALONE = "one learner"
RECORD = Path("results/bench/averaging_frequency.json")
PAPER_FRAMES, PUBLISHED, NEAR = 600_000, 54.9, 1.5
TRIALS = (1.0, 0.25)  # each of eight jobs takes eight times the rate of its share, as Kaldi does, or twice


def _averaging(frames: int) -> System:
    strategy = f"ParameterAveraging({frames / LEARNERS}, Jobs({LEARNERS}), rate='by jobs')"
    change = {"strategy": strategy, "learners": LEARNERS, "machines": MACHINES}
    return System(CTC, change, trials=TRIALS, part=1, decoded=SEEDS)


def best_range(rows: Groups) -> list[str]:
    """The frequencies in the best range, by the rule above, the best one first."""
    names = [name for name in NAMES if name in rows]
    best = min(names, key=lambda name: mean_loss(rows[name]))
    return [best, *(name for name in names if name != best and ratio(rows[best], rows[name]).low <= 1)]


def quality(rows: Groups) -> Outcome:
    chosen, alike = best_range(rows), not_alike([rows[name] for name in NAMES])
    each = ", ".join(f"{name} {-mean_loss(rows[name]):.4f}" for name in NAMES)
    against = ratio(rows[ALONE], rows[chosen[0]])
    return Outcome(
        f"best: {'; '.join(chosen)}; log-probability a frame: {each}",
        alike if len(chosen) < len(NAMES) else "undecided",
        f"loss of {chosen[0]} an iteration over that of one learner {shown(against)}",
    )


def words(rows: Groups) -> Outcome:
    chosen, rates = best_range(rows), {name: wer(rows[name]) for name in NAMES}
    decoded = {name: rate for name, rate in rates.items() if rate is not None}
    if not decoded:
        return Outcome("all diverged", "undecided")
    fewest = min(decoded, key=lambda name: decoded[name].value)
    most = max(decoded, key=lambda name: decoded[name].value)
    told = "; ".join(f"{name} {w.value:.1f} % ({w.low:.1f} to {w.high:.1f})" for name, w in decoded.items())
    far = wer_difference(rows[fewest], rows[most])
    why = "" if far is None else f"worst less best {far.value:+.1f} points ({far.low:+.1f} to {far.high:+.1f})"
    apart = wer_difference(rows[chosen[0]], rows[fewest])
    alike = apart is not None and apart.low <= 0 <= apart.high
    open_ended = len(chosen) == len(NAMES) or (alike and fewest not in chosen)
    return Outcome(told, "undecided" if open_ended else holds(fewest in chosen), why)


def saved(rows: Groups, record: Path = RECORD) -> Outcome:  # noqa: ARG001 - from the record of a benchmark
    """Judge the time saved by learners that stay alive, from the record of real processes."""
    figures = json.loads(record.read_text(encoding="utf-8"))["figures"]
    ours, jobs = figures["ours"], figures["job per iteration, processes"]
    if str(PAPER_FRAMES) not in ours:
        raise MissingRun(f"{record} has no iteration of {PAPER_FRAMES:,} frames")
    shares = {int(frames): 100 * (1 - ours[frames]["seconds"] / jobs[frames]["seconds"]) for frames in ours}
    ordered = [shares[frames] for frames in sorted(shares)]
    falls = ordered == sorted(ordered, reverse=True) and ordered[-1] > 0
    return Outcome(
        ", ".join(f"{shares[frames]:.0f} % at {frames:,}" for frames in sorted(shares)),
        holds(falls and PUBLISHED / NEAR <= shares[PAPER_FRAMES] <= PUBLISHED * NEAR),
        f"two learners of one host, real processes ({record.name}, older than this rule), whose gradients are pauses of"
        " a device of 60,000 frames a second; the share"
        f" {'falls' if falls else 'does not fall'} with rarer averages",
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
    "Rosciszewski & Kaliski 2017",
    "Rosciszewski, Kaliski: Minimizing distribution and data loading overheads in parallel training of DNN acoustic"
    " models with frequent parameter averaging (HPCS 2017)",
    "eight learners, LSTM with CTC on AN4, averages every 25,000 to 1.6 million frames of all learners; three seeds,"
    " decoded. The first average keeps the best learner alone; the last model is the best combination on dev of the"
    " newest ones",
    GROUPS,
    (
        Claim(
            "for a network, data set and machine there is a range of frequencies that is best for quality",
            "600,000 frames an iteration and learner were chosen, of 36 million (5,000 stand for an utterance)",
            "the frequencies are not all alike (5 %, F test over seeds), and the best range by held-out"
            " log-probability is not all of them; else undecided",
            (ALONE, *NAMES),
            quality,
            further=tuple(NAMES),
        ),
        Claim(
            "word errors show the same range",
            "both measures were studied; the rates could not be read",
            "the frequency with the fewest word errors is in that range; undecided if the range is all of them, or if"
            " it is not in the range, but does not differ from its best (95 %)",
            tuple(NAMES),
            words,
            further=tuple(NAMES),
        ),
        Claim(
            "learners that stay alive save time, the more the more often they average",
            "54.9 % at 600,000 frames",
            "the share saved falls from each frequency to the next lower one, and at 600,000 frames it is within"
            f" {NEAR} times theirs",
            (),
            partial(saved),
            cause=partial(parts),
        ),
    ),
    MACHINES,
    (ALONE, *NAMES, *BEYOND),
)
