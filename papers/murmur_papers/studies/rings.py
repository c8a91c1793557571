"""Cui et al. 2021: fixed ring, randomised ring and delay-by-one at 16 learners, and their largest minibatches.

Largest minibatch: plain SGD, IBM's schedule. Sizes of all learners are 164 times the roots of powers of two. Each size
has a rate of its own. Runs with seed 0 and all frames try one learner's rate, times the size over 164 after the warm-up
(`Auto`'s rule), and half of this. While the best one is at an end, the next factor is tried, up to four. A size is
usable if the held-out loss at its best rate is at most 1.1 times that of one learner with 164 windows and the same
seed, at equal frames. A bisection with seed 0 finds the largest usable size. This size is then run with seeds 1 and 2;
while it is not usable with one of them, the next smaller size is run with all seeds. The first size that is not usable
is run with all seeds too, unless no size is usable. Three times the size of synchronous SGD is between three and four
steps: with three the verdict is undecided, because one more seed or one fewer would change it. All strategies are
compared at 464 windows, which is 2.8 times one learner's minibatch, the step next to the paper's three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from murmur.comparison.rows import Row
from murmur_papers.studies.base import BLSTM
from murmur_papers.studies.cell import StudyCell
from murmur_papers.studies.run import loss
from murmur_papers.studies.study import (
    AUTO_FIRST,
    MOST_TRIALS,
    ONE_SEED,
    SEEDS,
    Alone,
    Claim,
    Go,
    Group,
    Groups,
    Outcome,
    Study,
    System,
    best_of,
    beyond,
    compared,
    further_seeds,
    undecided,
)
from murmur_papers.studies.verdicts import Verdict, apart, fast, ratio, shown

LEARNERS, MACHINES = 16, "cui2021"
PAPER = (
    "Cui, Zhang, Kayi, Liu, Finkler, Kingsbury, Saon, Kung: Asynchronous decentralized distributed training of acoustic"
    " models (arXiv 2110.11199, 2021)"
)
STRATEGIES = {
    "synchronous": "SyncSGD()",
    "fixed ring": "ADPSGD(ring)",
    "randomised ring": "ADPSGD(randomized_ring)",
    "delay-by-one": "DelayByOne()",
}
TRIALS = {"synchronous": (1.0, 2.0)}
ALONE, ALONE_SGD = "one learner", "one learner, SGD"
SGD = Alone("blstm", optimizer="SGD", decoded=(), part=1)
STEPS, USABLE = range(7), 1.1
TRIPLE = 3  # steps, a factor of 2.8
BISECTED = ("synchronous", "randomised ring", "delay-by-one")
LARGE = round(SGD.cell.minibatch * 2 ** (TRIPLE / 2))  # windows of all learners
DECENTRALISED = ("fixed ring", "randomised ring", "delay-by-one")


def system(name: str) -> System:
    settings = {"strategy": STRATEGIES[name], "learners": LEARNERS, "machines": MACHINES}
    return System(BLSTM, settings, trials=TRIALS.get(name, (1.0, 0.5)))


@dataclass(frozen=True)
class Largest:
    """The search for the largest usable minibatch of a strategy.

    Attributes:
        strategy: strategy, as on a command line.
    """

    strategy: str

    def cell(self, step: int, rate: float, seed: int = 0) -> StudyCell:
        """A run with 164 times sqrt(2)^step windows; `rate` is that of 164."""
        times = 2 ** (step / 2)
        cell = replace(SGD.cell, strategy=self.strategy, learners=LEARNERS, machines=MACHINES)
        minibatch = round(SGD.cell.minibatch * times)
        return replace(cell, minibatch=minibatch, rate=rate, peak=times, seed=seed)

    def best(self, step: int, go: Go) -> StudyCell:
        """The run of a size with seed 0 at its best rate."""
        reference = SGD.rate(go)
        factor = best_of(AUTO_FIRST, lambda factor: go(self.cell(step, reference * factor)), MOST_TRIALS)
        return self.cell(step, reference * factor)

    def __call__(self, go: Go) -> list[Row]:
        one = by_seed(SGD(go))
        cells: dict[int, StudyCell] = {}
        done: dict[tuple[int, int], Row] = {}

        def usable(step: int, seed: int) -> bool:
            cells[step] = cells.get(step) or self.best(step, go)
            done[step, seed] = done.get((step, seed)) or go(replace(cells[step], seed=seed))
            return loss(done[step, seed]) <= USABLE * one[seed]

        left = list(STEPS)
        while left:
            middle = left[len(left) // 2]
            left = [step for step in left if (step > middle if usable(middle, 0) else step < middle)]
        edge = max((step for step, _ in list(done) if usable(step, 0)), default=-1)
        while edge >= 0 and not all([usable(edge, seed) for seed in SEEDS]):
            edge -= 1
        if edge >= 0 and edge + 1 in STEPS:
            _ = [usable(edge + 1, seed) for seed in SEEDS]
        return list(done.values())


def by_seed(alone: Sequence[Row]) -> dict[int, float]:
    return {row["cell"]["seed"]: loss(row) for row in alone}


def largest(rows: Sequence[Row], one: Mapping[int, float]) -> int:
    """Largest minibatch that is usable with all seeds; 0 if none is. `one`: losses of one learner by seed."""
    sizes: dict[int, list[bool]] = {}
    for row in rows:
        good = loss(row) <= USABLE * one[row["cell"]["seed"]]
        sizes.setdefault(row["cell"]["minibatch"], []).append(good)
    return max((size for size, good in sizes.items() if all(good) and len(good) == len(SEEDS)), default=0)


def large(name: str) -> str:
    return f"{name}, {LARGE} windows"


def convergence(rows: Groups) -> Outcome:
    """Judge delay-by-one against both rings, at one learner's minibatch."""
    sync = shown(ratio(rows["synchronous"], rows["delay-by-one"]))
    one = ", ".join(f"{name} {shown(ratio(rows[ALONE], rows[name]))}" for name in STRATEGIES)
    return _fastest(rows, f"against synchronous SGD {sync}; over one learner: {one}")


def fastest(rows: Groups) -> Outcome:
    """Judge it with large minibatches."""
    return _fastest({name: rows[large(name)] for name in DECENTRALISED})


def _fastest(rows: Groups, why: str = "") -> Outcome:
    *others, delay = DECENTRALISED
    found = {name: ratio(rows[name], rows[delay]) for name in others}
    least = max(found.values(), key=lambda value: value.high)
    told = ", ".join(f"that of the {name} {shown(value)}" for name, value in found.items())
    return compared(least, f"{LEARNERS} learners: {fast(rows[delay])}, loss of {delay} over {told}", why)


def superior(rows: Groups) -> Outcome:
    """Judge the best of the decentralised strategies against synchronous SGD."""
    sync = rows[large("synchronous")]
    found = {name: ratio(sync, rows[large(name)]) for name in DECENTRALISED}
    best = min(found, key=lambda name: (math.isnan(found[name].value), found[name].value))
    speeds = f"{fast(rows[large(best)])} (synchronous SGD {fast(sync)})"
    told = f"{LEARNERS} learners, {best}: {speeds}, loss over that of synchronous SGD {shown(found[best])}"
    return compared(found[best], told, ", ".join(f"{name} {shown(value)}" for name, value in found.items()))


def largest_minibatch(rows: Groups) -> Outcome:
    alone = {row["cell"]["seed"]: row for row in rows[ALONE_SGD]}
    one, tried = by_seed(rows[ALONE_SGD]), {name: rows[f"{name}: largest"] for name in BISECTED}
    if float("inf") in one.values():
        return undecided("one learner diverged", "one learner diverged")
    reasons = {apart(alone[row["cell"]["seed"]], row) for each in tried.values() for row in each} - {""}
    alike = {k: [row for row in each if not apart(alone[row["cell"]["seed"]], row)] for k, each in tried.items()}
    rate = rows[ALONE_SGD][0]["cell"]["rate"]
    told = "; ".join(f"{name}: {_course(each, one)}" for name, each in alike.items())
    why = f"loss over that of one learner, whose rate is {rate:g}: {told}"
    if reasons:
        return undecided(f"{LEARNERS} learners: not compared", "; ".join(sorted(reasons)), why)
    sizes = {name: largest(each, one) for name, each in tried.items()}
    ours = f"{LEARNERS} learners: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items())
    decentralised = max(sizes["randomised ring"], sizes["delay-by-one"])
    steps = _step(decentralised) - _step(sizes["synchronous"])
    verdict: Verdict = "reached" if steps > TRIPLE else "not reached" if steps < TRIPLE else "undecided"
    ends = _step(decentralised) == STEPS[-1]  # it might be larger
    if not sizes["synchronous"] or (ends and verdict == "not reached"):
        verdict = "undecided"
    return Outcome(f"{ours} windows", verdict, why)


def _step(size: int) -> int:
    """Place of a size in `STEPS`; -1 for 0."""
    return round(2 * math.log2(size / SGD.cell.minibatch)) if size else -1


def _course(rows: Sequence[Row], one: Mapping[int, float]) -> str:
    sizes: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["cell"]["minibatch"], row["cell"]["seed"])):
        sizes.setdefault(row["cell"]["minibatch"], []).append(row)
    return ", ".join(f"{size:,} {_over_one(each, one)} (rate {_rate(each)})" for size, each in sizes.items())


def _over_one(rows: Sequence[Row], one: Mapping[int, float]) -> str:
    return " and ".join(f"{loss(row) / one[row['cell']['seed']]:.2f}" for row in rows)


def _rate(rows: Sequence[Row]) -> str:
    """The rate after the warm-up, before `Auto`."""
    return f"{rows[0]['cell']['rate'] * rows[0]['cell']['peak']:.3g}"


def at_the_largest(rows: Groups) -> str:
    one = by_seed(rows[ALONE_SGD])
    found = {name: rows[f"{name}, largest size tried"] for name in BISECTED}
    told = ", ".join(f"{name} {_over_one(each, one)} (rate {_rate(each)})" for name, each in found.items())
    size = round(SGD.cell.minibatch * 2 ** (STEPS[-1] / 2))
    return f"with {size:,} windows, loss over one learner's: {told}"


def _at(name: str, step: int, seeds: Sequence[int]) -> Group:
    def runs(go: Go) -> list[Row]:
        best = Largest(STRATEGIES[name]).best(step, go)
        return [go(replace(best, seed=seed)) for seed in seeds]

    return runs


RINGS: dict[str, System] = {name: system(name) for name in STRATEGIES}
GROUPS: dict[str, Group] = {
    ALONE: BLSTM,
    **RINGS,
    **further_seeds({name: RINGS[name] for name in DECENTRALISED}),
    ALONE_SGD: SGD,
    **{f"{name}: largest": Largest(STRATEGIES[name]) for name in BISECTED},
    **beyond(BLSTM, learners=LEARNERS, machines=MACHINES),
    **{f"{name}, largest size tried": _at(name, STEPS[-1], ONE_SEED) for name in BISECTED},
    **{large(name): _at(name, TRIPLE, SEEDS) for name in STRATEGIES},
}
STUDY = Study(
    "rings",
    "Cui et al. 2021",
    PAPER,
    "16 learners: fixed and randomised ring, delay-by-one, synchronous SGD with one learner's minibatch of 164 windows"
    " cut among them, three seeds; the largest usable minibatch by bisection with plain SGD, three seeds at the edge",
    GROUPS,
    (
        Claim(
            '"superior performance over the commonly-used synchronous distributed training via allreduce, especially'
            ' when dealing with large batch sizes"',
            "",
            f"loss of the best decentralised strategy over that of synchronous SGD with {LARGE} windows",
            tuple(large(name) for name in STRATEGIES),
            superior,
        ),
        Claim(
            '"When learners are equally fast, ADPSGD with the delay-by-one strategy has the fastest convergence with'
            ' large batches"',
            "",
            f"its loss over that of each ring with {LARGE} windows at equal frames: the less favourable of both",
            tuple(large(name) for name in DECENTRALISED),
            fastest,
        ),
        Claim(
            '"less than 2 hours using 128 V100 GPUs with competitive word error rates"',
            "1.98 h, 7.7 / 13.3 % WER (Zhang et al. 2020)",
            "a run at the paper's size; `murmur plan cui2021` predicts its hours",
            (),
            None,
            command="murmur train cui2021 --strategy DelayByOne --set task.data=FOLDER --set task.dev=FOLDER",
        ),
        Claim(
            '"ADPSGD can converge with a batch size 3X as large as the one used in SSGD"',
            "12,288 against 4,096 sequences",
            f"the largest minibatch at which all seeds stay within {USABLE} times one learner's loss is at least three"
            " times that of synchronous SGD; undecided at 2.8 times, if the sizes tried end there, or if none is"
            " usable with synchronous SGD",
            (ALONE_SGD, *(f"{name}: largest" for name in BISECTED)),
            largest_minibatch,
            tuple(f"{name}, largest size tried" for name in BISECTED),
            at_the_largest,
            cited="Zhang et al. 2019",
        ),
        Claim(
            "with equally fast learners delay-by-one converges fastest at one learner's minibatch",
            "",
            "its loss over that of each ring at equal frames and one learner's minibatch: the less favourable of both",
            (ALONE, *STRATEGIES),
            convergence,
            further=DECENTRALISED,
        ),
    ),
    MACHINES,
)
