"""Cui et al. 2021: whether asynchronous strategies are superior at large minibatches, and where.

16 learners with SGD and schedule of `turns`, and the frames of 6,000 of its turns for all sizes. The search is that of
`rings`, from a quarter of one learner's 164 windows to eight times as many in factors of sqrt(2). A size is usable if
its loss at its best rate is at most 1.03 times that of one learner with the same seed and frames. Each size has a rate
of its own, tried on the part of dev that serves trials: one learner's, times the size over 164 after the warm-up, and
half of this; further ones while the best is at an end, up to four.

The largest minibatch of a seed is where its loss crosses 1.03, between the largest size that is usable with all seeds
and the next one, which are run with three seeds (interpolated in ln loss over ln size). The time to a loss is that at
which a run with the largest usable size first has 1.03 times one learner's loss, interpolated between evaluation points
(16 in a run), on the clock of `benchmarks/sixteen_devices.py`.

Classes of the ratio to synchronous SGD, by its whole 95 % interval over seeds (`heldout.graded`): "equal within 3 %",
"better", "worse", "undecided". The verdict is that of the randomised ring; the classes of the others stand beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from murmur.comparison.rows import Row
from murmur.report.error_rate import paired
from murmur_papers.studies.heldout import graded, on_one_kind
from murmur_papers.studies.rings import PAPER, STRATEGIES, Largest, by_seed, course_of, rate_of
from murmur_papers.studies.run import loss
from murmur_papers.studies.study import SEEDS, Claim, Group, Groups, Outcome, Study
from murmur_papers.studies.turns import ALONE, CHANGES, MACHINES, RANDOMISED, SETUP, system
from murmur_papers.studies.verdicts import NO_LOSS, Verdict, shown

TURNS, STEPS = 6_000, range(-4, 7)
ONE = system(ALONE, TURNS, SEEDS)
SYNCHRONOUS = "synchronous"
GROUPS: dict[str, Group] = {
    ALONE: ONE,
    **{
        f"{name}: largest": Largest(str(CHANGES[name]["strategy"]), ONE, STEPS, NO_LOSS, MACHINES)
        for name in (SYNCHRONOUS, RANDOMISED, *(name for name in STRATEGIES if name not in (SYNCHRONOUS, RANDOMISED)))
    },
}
Values = Mapping[int, float]  # by seed


def by_size(rows: Sequence[Row]) -> dict[int, dict[int, Row]]:
    """Runs of the sizes that have all seeds: by size, the smallest first, and seed."""
    found: dict[int, dict[int, Row]] = {}
    for row in sorted(rows, key=lambda row: row["cell"]["minibatch"]):
        found.setdefault(row["cell"]["minibatch"], {})[row["cell"]["seed"]] = row
    return {size: each for size, each in found.items() if set(SEEDS) <= each.keys()}


def usable(rows: Sequence[Row], one: Values) -> dict[int, Row]:
    """Runs of the largest size that is usable with all seeds; empty if there is none."""
    sizes = by_size(rows).values()
    good = [each for each in sizes if all(loss(each[seed]) <= NO_LOSS * one[seed] for seed in SEEDS)]
    return good[-1] if good else {}


def largest(rows: Sequence[Row], one: Values) -> Values | None:
    """The largest minibatch of each seed; None if no size is usable, or the largest one of all is."""
    sizes, edge = by_size(rows), usable(rows, one)
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


def times(rows: Sequence[Row], one: Values) -> Values | None:
    """Seconds to 1.03 times one learner's loss, by seed, with the largest usable size; None if there is none."""
    found = {seed: seconds_to(row, NO_LOSS * one[seed]) for seed, row in usable(rows, one).items()}
    return found if found and max(found.values()) < float("inf") else None


def compared(found: Mapping[str, Values | None], rows: Groups, unit: str, fewer: bool) -> Outcome:
    """Compare values of the strategies with those of synchronous SGD; `fewer`: smaller values are better."""
    one, told, classes = by_seed(rows[ALONE]), [], {}
    for name, own in found.items():
        classes[name], shown_ratio = _class(found[SYNCHRONOUS], own, fewer)
        value = "none" if own is None else f"{math.exp(sum(map(math.log, own.values())) / len(own)):,.0f} {unit}"
        told.append(f"{name} {value}" + ("" if name == SYNCHRONOUS else f": {classes[name]}{shown_ratio}"))
    verdicts: dict[str, Verdict] = {"better": "agrees", "undecided": "undecided"}
    courses = "; ".join(f"{name}: {course_of(rows[f'{name}: largest'], one)}" for name in found)
    why = f"loss over that of one learner, whose rate is {rate_of(rows[ALONE])}: {courses}"
    return Outcome(", ".join(told), verdicts.get(classes[RANDOMISED], "differs"), why)


def _class(sync: Values | None, own: Values | None, fewer: bool) -> tuple[str, str]:
    if sync is None or own is None:
        return "undecided", ""
    first, second = ([each[seed] for seed in SEEDS] for each in (sync, own))
    ratio = paired(first, second)
    return graded(ratio if fewer else paired(second, first)), f", {shown(ratio)} of synchronous SGD's"


@on_one_kind
def larger(rows: Groups) -> Outcome:
    one = by_seed(rows[ALONE])
    found = {name: largest(rows[f"{name}: largest"], one) for name in STRATEGIES}
    return compared(found, rows, "windows", fewer=False)


@on_one_kind
def sooner(rows: Groups) -> Outcome:
    one = by_seed(rows[ALONE])
    found = {name: times(rows[f"{name}: largest"], one) for name in STRATEGIES}
    return compared(found, rows, "s", fewer=True)


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
            "an asynchronous strategy trains with larger minibatches than synchronous SGD",
            "12,288 against 4,096 sequences (Zhang et al. 2019)",
            f"the largest minibatch within {NO_LOSS} of one learner's loss, of the randomised ring over synchronous"
            " SGD: better. Undecided if no size of one of them is usable, or the largest one tried is",
            tuple(GROUPS),
            larger,
        ),
        Claim(
            "an asynchronous strategy reaches a loss sooner than synchronous SGD at large minibatches",
            "superior at large minibatches, without numbers",
            f"seconds to {NO_LOSS} times one learner's loss, each with its largest usable minibatch, of the randomised"
            " ring over synchronous SGD: better",
            tuple(GROUPS),
            sooner,
        ),
    ),
    MACHINES,
)
