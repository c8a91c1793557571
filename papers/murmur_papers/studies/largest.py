"""Cui et al. 2021: large minibatches. How large they can be, and how soon a loss is reached with them.

16 learners with SGD and schedule of `turns`, and the frames of 6,000 of its turns for all sizes. Sizes of all learners
are one learner's 164 windows times powers of sqrt(2), from a quarter to eight times as many. A size is usable if its
loss at its best rate is at most 1.03 times that of one learner with the same seed and frames. Each size has a rate of
its own, tried on the part of dev that serves trials: one learner's, times the size over 164 after the warm-up (`Auto`'s
rule), and half of this; further ones while the best is at an end, up to four.

A bisection with seed 0 finds the largest usable size. This size is then run with seeds 1 and 2; while it is not usable
with one of them, the next smaller size is run with all seeds. The first size that is not usable is run with all seeds
too, unless no size is usable. The largest minibatch of a seed is where its loss crosses 1.03 between these two sizes
(interpolated in ln loss over ln size). The time to a loss is that at which a run with the largest usable size first has
1.03 times one learner's loss, interpolated between evaluation points (16 in a run), on the clock of
`benchmarks/sixteen_devices.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, geometric_mean

from murmur.comparison.rows import Row
from murmur.report.error_rate import paired
from murmur_papers.studies.cell import StudyCell
from murmur_papers.studies.heldout import comparable
from murmur_papers.studies.rings import LEARNERS, PAPER, STRATEGIES
from murmur_papers.studies.run import loss
from murmur_papers.studies.study import (
    AUTO_FIRST,
    MOST_TRIALS,
    SEEDS,
    Claim,
    Go,
    Group,
    Groups,
    Outcome,
    Study,
    best_of,
    compared,
    undecided,
)
from murmur_papers.studies.turns import ALONE, MACHINES, RANDOMISED, SETUP, system
from murmur_papers.studies.verdicts import NO_LOSS, holds_throughout, ratio, shown

TURNS, STEPS = 6_000, range(-4, 7)
ONE = system(ALONE, TURNS, SEEDS)
SYNCHRONOUS, DELAY = "synchronous", "delay-by-one"
RINGS, TIMES = (RANDOMISED, "fixed ring"), 3.0
Values = Mapping[int, float]  # by seed


@dataclass(frozen=True)
class Largest:
    """The search for the largest usable minibatch of a strategy.

    Attributes:
        strategy: strategy, as on a command line.
    """

    strategy: str

    def cell(self, step: int, rate: float, seed: int = 0) -> StudyCell:
        """A run with one learner's minibatch times sqrt(2)^step; `rate` is that of one learner."""
        times, one = 2 ** (step / 2), ONE.cell
        cell = replace(one, strategy=self.strategy, learners=LEARNERS, machines=MACHINES)
        return replace(cell, minibatch=round(one.minibatch * times), rate=rate, peak=one.peak * times, seed=seed)

    def best(self, step: int, go: Go) -> StudyCell:
        """The run of a size with seed 0 at its best rate."""
        rate = ONE.best(go).rate
        factor = best_of(AUTO_FIRST, lambda f: go(self.cell(step, rate * f)), MOST_TRIALS, ONE.measure)
        return self.cell(step, rate * factor)

    def __call__(self, go: Go) -> list[Row]:
        one = by_seed(ONE(go))
        cells: dict[int, StudyCell] = {}
        done: dict[tuple[int, int], Row] = {}

        def usable(step: int, seed: int) -> bool:
            cells[step] = cells.get(step) or self.best(step, go)
            done[step, seed] = done.get((step, seed)) or go(replace(cells[step], seed=seed))
            return loss(done[step, seed]) <= NO_LOSS * one[seed]

        left = list(STEPS)
        while left:
            middle = left[len(left) // 2]
            left = [step for step in left if (step > middle if usable(middle, 0) else step < middle)]
        edge = max((step for step, _ in list(done) if usable(step, 0)), default=STEPS[0] - 1)
        while edge in STEPS and not all([usable(edge, seed) for seed in SEEDS]):
            edge -= 1
        if edge in STEPS and edge + 1 in STEPS:
            _ = [usable(edge + 1, seed) for seed in SEEDS]
        return list(done.values())


def by_seed(alone: Sequence[Row]) -> dict[int, float]:
    return {row["cell"]["seed"]: loss(row) for row in alone}


def by_size(rows: Sequence[Row]) -> dict[int, dict[int, Row]]:
    """Runs by size, the smallest first, and seed."""
    found: dict[int, dict[int, Row]] = {}
    for row in sorted(rows, key=lambda row: (row["cell"]["minibatch"], row["cell"]["seed"])):
        found.setdefault(row["cell"]["minibatch"], {})[row["cell"]["seed"]] = row
    return found


def with_all_seeds(rows: Sequence[Row]) -> dict[int, dict[int, Row]]:
    return {size: each for size, each in by_size(rows).items() if set(SEEDS) <= each.keys()}


def usable(rows: Sequence[Row], one: Values) -> dict[int, Row]:
    """Runs of the largest size that is usable with all seeds; empty if there is none."""
    sizes = with_all_seeds(rows).values()
    good = [each for each in sizes if all(loss(each[seed]) <= NO_LOSS * one[seed] for seed in SEEDS)]
    return good[-1] if good else {}


def largest(rows: Sequence[Row], one: Values) -> Values | None:
    """The largest minibatch of each seed; None if no size is usable, or the largest one of all is."""
    sizes, edge = with_all_seeds(rows), usable(rows, one)
    after = next((later for earlier, later in pairwise(sizes) if sizes[earlier] == edge), None)
    if not edge or after is None:
        return None
    found = {}
    for seed in SEEDS:
        low, high = (math.log(loss(row[seed]) / one[seed] / NO_LOSS) for row in (edge, sizes[after]))
        share = min(1.0, -low / (high - low)) if high > 0 else 1.0
        first = edge[seed]["cell"]["minibatch"]
        found[seed] = first * (after / first) ** share
    return found


def seconds_to(row: Row, target: float) -> float:
    """Virtual seconds at which a run first has a loss, interpolated between evaluation points; infinity if never."""
    before: tuple[float, float] | None = None
    for _, value, seconds in row["curve"]:
        if value is not None and value <= target:
            if before is None:
                return float(seconds)
            at, higher = before
            return float(at + (seconds - at) * (higher - target) / (higher - value))
        before = None if value is None else (seconds, value)
    return float("inf")


@comparable
def larger(rows: Groups) -> Outcome:
    """Judge the largest minibatch of the randomised ring against that of synchronous SGD."""
    one = by_seed(rows[ALONE])
    tried = {name: rows[searched(name)] for name in STRATEGIES}
    found = {name: largest(each, one) for name, each in tried.items()}
    sync, told, times = found[SYNCHRONOUS], [], {}
    for name, own in found.items():
        if sync and own and name != SYNCHRONOUS:
            times[name] = paired(list(sync.values()), list(own.values()))
        windows = "none" if own is None else f"{geometric_mean(own.values()):,.0f} windows"
        told.append(f"{name} {windows}" + (f", {shown(times[name])} times as large" if name in times else ""))
    ours = f"{LEARNERS} learners: {'; '.join(told)}"
    courses = "; ".join(f"{name}: {_course(each, one)}" for name, each in tried.items())
    why = f"loss over that of one learner, whose rate is {_rate(rows[ALONE])}: {courses}"
    if RANDOMISED not in times:
        return undecided(ours, "no size is usable, or the largest one tried is", why)
    return Outcome(ours, holds_throughout(times[RANDOMISED], lambda value: value >= TIMES), why)


def _course(rows: Sequence[Row], one: Values) -> str:
    """Losses over one learner's and the rate after the warm-up, before `Auto`, by size."""

    def over_one(each: Mapping[int, Row]) -> str:
        return " and ".join(f"{loss(row) / one[seed]:.2f}" for seed, row in each.items())

    return ", ".join(
        f"{size:,} {over_one(each)} (rate {_rate(list(each.values()))})" for size, each in by_size(rows).items()
    )


def _rate(rows: Sequence[Row]) -> str:
    return f"{rows[0]['cell']['rate'] * rows[0]['cell']['peak']:.3g}"


@comparable
def superior(rows: Groups) -> Outcome:
    """Judge the randomised ring against synchronous SGD, by the time to a loss."""
    return _sooner(rows, RANDOMISED, (SYNCHRONOUS,))


@comparable
def fastest(rows: Groups) -> Outcome:
    """Judge delay-by-one against both rings."""
    return _sooner(rows, DELAY, RINGS)


def _sooner(rows: Groups, name: str, others: Sequence[str]) -> Outcome:
    """Judge the time to a loss of a strategy over that of others, each with its largest usable minibatch."""
    one = by_seed(rows[ALONE])
    runs = {each: list(usable(rows[searched(each)], one).values()) for each in STRATEGIES}

    def seconds(row: Row) -> float:
        return seconds_to(row, NO_LOSS * one[row["cell"]["seed"]])

    def spent(each: str) -> str:
        if not runs[each]:
            return f"{each} no usable size"
        return f"{each} {fmean(map(seconds, runs[each])):,.0f} s ({runs[each][0]['cell']['minibatch']:,} windows)"

    ours = f"{LEARNERS} learners: {', '.join(map(spent, STRATEGIES))}"
    if not all(runs[each] for each in (name, *others)):
        return undecided(ours, "no usable size")
    found = {each: ratio(runs[each], runs[name], seconds) for each in others}
    told = ", ".join(f"{shown(value)} of {each}" for each, value in found.items())
    sync = ", ".join(f"{n} {shown(ratio(runs[SYNCHRONOUS], runs[n], seconds))}" for n in (*RINGS, DELAY) if runs[n])
    why = f"seconds over those of synchronous SGD: {sync}" if runs[SYNCHRONOUS] else ""
    return compared(max(found.values(), key=lambda value: value.high), f"{ours}; {name} {told}", why)


def searched(name: str) -> str:
    return f"{name}: largest"


GROUPS: dict[str, Group] = {
    ALONE: ONE,
    **{searched(name): Largest(STRATEGIES[name]) for name in (SYNCHRONOUS, *RINGS, DELAY)},
}
STUDY = Study(
    "largest",
    "Cui et al. 2021",
    PAPER,
    f"16 learners, SGD with momentum and IBM's schedule, augmented speech, the frames of {TURNS:,} turns with"
    f" {SETUP.minibatch} windows: the largest total minibatch of four strategies from {SETUP.minibatch // 4} to"
    f" {SETUP.minibatch * 8:,} windows by bisection, with a rate for each size and three seeds at the edge",
    GROUPS,
    (
        Claim(
            '"superior performance over the commonly-used synchronous distributed training via allreduce, especially'
            ' when dealing with large batch sizes"',
            "",
            f"seconds to {NO_LOSS} times one learner's loss, each with its largest usable minibatch, of the randomised"
            " ring over synchronous SGD",
            tuple(GROUPS),
            superior,
        ),
        Claim(
            '"When learners are equally fast, ADPSGD with the delay-by-one strategy has the fastest convergence with'
            ' large batches"',
            "",
            f"seconds to {NO_LOSS} times one learner's loss, each with its largest usable minibatch, of delay-by-one"
            " over each ring: the less favourable of both",
            tuple(GROUPS),
            fastest,
        ),
        Claim(
            '"ADPSGD can converge with a batch size 3X as large as the one used in SSGD"',
            "12,288 against 4,096 sequences",
            f"the largest minibatch within {NO_LOSS} times one learner's loss, of the randomised ring over synchronous"
            f" SGD: at least {TIMES:g}, by the whole interval; undecided if no size of one of them is usable, or the"
            " largest one tried is",
            tuple(GROUPS),
            larger,
            cited="Zhang et al. 2019",
        ),
    ),
    MACHINES,
)
