"""Cui et al. 2021, at other numbers of turns: the gap of 16 learners to one, from 1,500 to 24,000 turns.

The BLSTM and the minibatch of `rings`, augmented speech, SGD with momentum of 0.9 and IBM's schedule, as in Cui et al.
2021: the rate warms up to 32 times its first value over 10 of 16 parts of the run, then falls by sqrt(2) a part.

Rates: one learner with 1,500 turns gives the centre (three rates, more while the best is at an end). Then every system,
one learner too, tries the centre, its half and its double at every number of turns, with seed 0, on the part of dev
that serves trials; the other part judges (`murmur_papers.tasks.judged_frames`). Trials have all frames, and half of
them at 12,000 and 24,000 turns, whose trials are those of 6,000 and 12,000.

The reference of a ratio is one learner's lowest loss at an evaluation point of a run with no more frames and the same
seed. The system has its loss at the end. Intervals: `heldout`. The best asynchronous strategy is the one with the
lowest loss on the trial part at 12,000 turns, the largest number that all have.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from murmur.comparison.rows import Row
from murmur.report.error_rate import Interval
from murmur_papers.studies.heldout import END, LogRatio, Pair, best_loss, comparable, interval, lost, places, trial_loss
from murmur_papers.studies.networks import IBM_PEAK, SETUPS
from murmur_papers.studies.rings import LEARNERS, STRATEGIES
from murmur_papers.studies.rings import PAPER as CUI
from murmur_papers.studies.run import MissingRun, diverged, loss
from murmur_papers.studies.study import TWO_SEEDS, Alone, Claim, Go, Group, Groups, Outcome, Study, System, undecided
from murmur_papers.studies.turns_picture import Lines, draw
from murmur_papers.studies.verdicts import USUAL, holds_throughout, shown
from murmur_papers.studies.watched import PROBED

TURNS, LONGEST = (1_500, 3_000, 6_000, 12_000), 24_000
ALONE, RANDOMISED, HIERARCHY = "one learner", "randomised ring", "hierarchy"
MACHINES, LIMIT = "hosts", 1.01
MANY: dict[str, dict[str, object]] = {
    **{name: {"strategy": STRATEGIES[name], "machines": MACHINES} for name in STRATEGIES},
    HIERARCHY: {"strategy": "SuperLearners(ADPSGD(ring), 4)", "machines": "hosts of four"},
}
CHANGES: dict[str, dict[str, object]] = {
    ALONE: {},
    **{name: {"learners": LEARNERS, **change} for name, change in MANY.items()},
}
ASYNCHRONOUS = tuple(name for name in MANY if name != "synchronous")
FIRST = (ALONE, "synchronous", RANDOMISED)  # run before the others
FACTORS = (1.0, 0.5, 2.0)
WHOLE_TRIALS = 6_000  # turns up to which trials have all frames
SETUP = SETUPS["augmented"]
CENTRE = Alone("augmented", decoded=(), peak=IBM_PEAK, measure=trial_loss)


def frames(turns: int) -> int:
    """Frames of so many turns of all learners."""
    return round(turns * SETUP.minibatch * SETUP.unit_frames)


def numbers(name: str) -> tuple[int, ...]:
    """Numbers of turns of a system."""
    return (*TURNS, LONGEST) if name in (ALONE, RANDOMISED) else TURNS


def group(name: str, turns: int, seed: int) -> str:
    return f"{name}, {turns:,} turns, seed {seed}"


def system(name: str, turns: int, seeds: tuple[int, ...]) -> System:
    change = {**CHANGES[name], "budget": frames(turns)}
    part = 2 if turns > WHOLE_TRIALS else 1
    return System(CENTRE, change, FACTORS, part, seeds, decoded=(), most=len(FACTORS))


def groups() -> Iterator[tuple[str, Group]]:
    """The groups in the order in which they run: two strategies first, and seed 0 before seed 1."""
    later = tuple(name for name in CHANGES if name not in FIRST)
    for names in (FIRST, later):
        for seed in TWO_SEEDS:
            for turns in (*TURNS, LONGEST):
                for name in names:
                    if turns in numbers(name):
                        yield group(name, turns, seed), system(name, turns, (seed,))


GROUPS = dict(groups())


def runs(rows: Groups, name: str, turns: int) -> list[Row]:
    """The runs of all seeds that are there."""
    found = (rows.get(group(name, turns, seed), ()) for seed in TWO_SEEDS)
    return [row for each in found for row in each]


def reference(rows: Groups, run: Row) -> Row | None:
    """One learner's run with the lowest loss at a point, of those with no more frames and the same seed."""
    cell = run["cell"]
    alone = [row for turns in numbers(ALONE) for row in runs(rows, ALONE, turns)]
    fitting = [r for r in alone if r["cell"]["seed"] == cell["seed"] and r["cell"]["budget"] <= cell["budget"]]
    return min(fitting, key=best_loss, default=None)


def pairs(rows: Groups, name: str, turns: int) -> list[Pair]:
    found = [(reference(rows, row), row) for row in runs(rows, name, turns)]
    return [(first, row) for first, row in found if first is not None]


def ratios(rows: Groups, name: str) -> dict[int, LogRatio]:
    """Ratios of a system by numbers of turns, without those at which a run diverged."""
    found = {turns: pairs(rows, name, turns) for turns in numbers(name)}
    return {turns: LogRatio.of(each) for turns, each in found.items() if each and not lost(each)}


def at(rows: Groups, name: str, turns: int) -> Interval:
    """The ratio at a number of turns; infinite if a run diverged."""
    found = ratios(rows, name)
    if turns not in found:
        return Interval(math.inf, math.inf, math.inf, USUAL)
    return interval([(1.0, found[turns])], list(found.values()))


def best_asynchronous(rows: Groups) -> str:
    return min(ASYNCHRONOUS, key=lambda name: statistics.mean(map(trial_loss, runs(rows, name, TURNS[-1]))))


def table(rows: Groups) -> str:
    """All ratios, with the rates after the warm-up."""

    def told(name: str, turns: int) -> str:
        cell = runs(rows, name, turns)[0]["cell"]
        return f"{turns:,} {shown(at(rows, name, turns))} (rate {cell['rate'] * cell['peak']:.3g})"

    return "; ".join(f"{name} " + ", ".join(told(name, turns) for turns in numbers(name)) for name in MANY)


@comparable
def near(rows: Groups) -> Outcome:
    name = best_asynchronous(rows)
    turns = numbers(name)[-1]
    found = at(rows, name, turns)
    verdict = holds_throughout(found, lambda value: value < LIMIT)
    return Outcome(f"{LEARNERS} learners, {name}, {turns:,} turns: loss {shown(found)}", verdict, table(rows))


def alone_losses(rows: Groups) -> list[float]:
    """One learner's loss at the end, geometric mean over seeds, by numbers of turns."""
    found = [[math.log(loss(row)) for row in runs(rows, ALONE, turns)] for turns in numbers(ALONE)]
    return [math.exp(statistics.mean(each)) for each in found]


@comparable
def falling(rows: Groups) -> Outcome:
    name = best_asynchronous(rows)
    found, first, last = ratios(rows, name), TURNS[0], numbers(name)[-1]
    if not {first, last} <= found.keys():
        return undecided(f"{name} diverged", "a run diverged", table(rows))
    change = interval([(1.0, found[last]), (-1.0, found[first])], list(found.values()))
    losses = alone_losses(rows)
    told = ", ".join(f"{turns:,} {value:.4f}" for turns, value in zip(numbers(ALONE), losses, strict=True))
    ours = f"{LEARNERS} learners, {name}: {shown(change)} of the ratio at {first:,} turns is left at {last:,}"
    why = f"one learner's losses: {told}"
    if any(later >= earlier for earlier, later in pairwise(losses[: numbers(ALONE).index(last) + 1])):
        return undecided(ours, "one learner's loss does not fall", why)
    return Outcome(ours, holds_throughout(change, lambda value: value < 1), why)


@comparable
def unfinished(rows: Groups) -> Outcome:
    steps = {
        later: LogRatio.of(list(zip(runs(rows, ALONE, n), runs(rows, ALONE, later), strict=True)), END)
        for n, later in pairwise(numbers(ALONE))
    }
    found = interval([(1.0, steps[LONGEST])], list(steps.values()))
    ours = f"one learner: loss {shown(found)} with {LONGEST:,} turns over that with {numbers(ALONE)[-2]:,}"
    return Outcome(ours, holds_throughout(found, lambda value: value < 1))


def causes(rows: Groups) -> str:
    """Distance, staleness and momenta at the largest number of turns of every strategy."""
    told = []
    for name in MANY:
        found = [row for row in runs(rows, name, numbers(name)[-1]) if not diverged(row)]
        if found:
            told.append(f"{name} {_cause(found)}")
    return "medians over a run: " + "; ".join(told)


def _cause(found: Sequence[Row]) -> str:
    probes = [dict(zip(PROBED, each, strict=True)) for row in found for each in row["probes"]]
    moving = [probe for probe in probes if probe["update"] and probe["momentum"]]
    if not moving:
        return "without probes"
    distance = statistics.median(probe["distance"] / probe["update"] for probe in moving)
    common = statistics.median(probe["common momentum"] / probe["momentum"] for probe in moving)
    mean, most = statistics.mean(row["staleness"] for row in found), max(row["stalest"] for row in found)
    return (
        f"distance {distance:.2f} of a step, staleness {mean:.2f} (at most {most}), common part of the momenta"
        f" {common:.2f}"
    )


def picture(go: Go, out: Path) -> str:
    """Draw ratios and courses of the runs that are there, if they can be compared."""
    rows = dict[str, list[Row]]()
    for name, each in GROUPS.items():
        try:
            rows[name] = list(each(go))
        except MissingRun:
            continue
    if places([row for each in rows.values() for row in each]):
        return ""
    found = {name: {turns: at(rows, name, turns) for turns in ratios(rows, name)} for name in MANY}
    if max(map(len, found.values())) < 2:
        return ""
    ends = {n: mean for n in numbers(ALONE) if (mean := _reference_loss(rows, n)) is not None}
    courses = {name: _courses(rows, name) for name in CHANGES}
    draw(Lines(found, ends, courses, LIMIT), out / "papers_turns.svg")
    return "![turns: losses of 16 learners over one learner's, and the losses, over turns](papers_turns.svg)"


def _reference_loss(rows: Groups, turns: int) -> float | None:
    """Lowest loss of one learner with no more frames, mean over seeds; None without a run of that length."""
    found = [best_loss(first) for row in runs(rows, ALONE, turns) if (first := reference(rows, row)) is not None]
    return statistics.mean(found) if found else None


def _courses(rows: Groups, name: str) -> list[list[tuple[float, float]]]:
    """Turns and losses during the first run of each length; of many learners that of the longest alone."""
    found = [runs(rows, name, turns)[:1] for turns in numbers(name)]
    lines = [
        [(samples / frames(1), value) for samples, value, _ in row["curve"] if value is not None]
        for each in found
        for row in each
    ]
    return lines if name == ALONE else lines[-1:]


STUDY = Study(
    "turns",
    "Cui et al. 2021",
    CUI,
    "16 learners with one learner's minibatch of 164 windows cut among them, SGD with momentum and IBM's schedule,"
    " augmented speech, 1,500 to 12,000 turns (the randomised ring and one learner also 24,000), two seeds; three rates"
    " a system and number of turns, tried on a part of dev that does not judge (from 12,000 turns on with half of the"
    " frames)",
    GROUPS,
    (
        Claim(
            "with enough turns an asynchronous strategy reaches one learner's loss",
            "word error rates of synchronous SGD, after about 66,000 turns",
            f"the ratio at the largest number of turns of the best asynchronous strategy, interval below {LIMIT}",
            tuple(GROUPS),
            near,
            cause=causes,
        ),
        Claim(
            "the gap to one learner closes with turns, while one learner improves",
            "without numbers",
            "the best asynchronous strategy's ratio at its largest number of turns over that at 1,500, interval below"
            " 1; undecided unless one learner's loss falls with each number of turns",
            tuple(GROUPS),
            falling,
            cause=causes,
        ),
        Claim(
            "one learner still improves at the end",
            "a condition of the other two claims",
            "one learner's loss with 24,000 turns over that with 12,000, interval below 1",
            tuple(group(ALONE, turns, seed) for turns in numbers(ALONE) for seed in TWO_SEEDS),
            unfinished,
        ),
    ),
    MACHINES,
    picture=picture,
)
