"""Cui et al. 2021: fixed ring, randomised ring and delay-by-one at 16 learners, and their largest minibatches.

Largest minibatch: plain SGD, IBM's schedule. Sizes of all learners are 164 times the roots of powers of two. Each size
has a rate of its own. Runs with seed 0 and all frames try one learner's rate, times the size over 164 after the warm-up
(`Auto`'s rule), and half of this. While the best one is at an end, the next factor is tried, up to four. A size is
usable if the held-out loss at its best rate is at most 1.1 times that of one learner with 164 windows and the same
seed, at equal frames. A bisection with seed 0 finds the largest usable size. This size is then run with seeds 1 and 2;
while it is not usable with one of them, the next smaller size is run with all seeds. The first size that is not usable
is run with all seeds too, unless no size is usable. If the largest sizes of two strategies are one step apart, the
verdict is undecided, because one more seed or one fewer would change them.
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
    BEYOND,
    MOST_TRIALS,
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
    further_seeds,
)
from murmur_papers.studies.verdicts import Verdict, below, mean_loss, ratio, shown

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
DECISIVE = 2  # steps, a factor of two
BISECTED = ("synchronous", "randomised ring", "delay-by-one")


def system(name: str) -> System:
    settings = {"strategy": STRATEGIES[name], "learners": LEARNERS, "machines": MACHINES}
    return System(BLSTM, settings, trials=TRIALS.get(name, (1.0, 0.5)))


@dataclass(frozen=True)
class Largest:
    """The search for the largest usable minibatch of a strategy.

    Attributes:
        strategy: strategy, as on a command line.
        one: one learner, with whose loss that of a size is compared.
        steps: sizes to search, as powers of sqrt(2) over one learner's minibatch.
        usable: largest loss of a usable size over one learner's.
        machines: name of the virtual machines.
    """

    strategy: str
    one: Alone | System = SGD
    steps: range = STEPS
    usable: float = USABLE
    machines: str = MACHINES

    def cell(self, step: int, rate: float, seed: int = 0) -> StudyCell:
        """A run with one learner's minibatch times sqrt(2)^step; `rate` is that of one learner."""
        times, one = 2 ** (step / 2), self.one.cell
        cell = replace(one, strategy=self.strategy, learners=LEARNERS, machines=self.machines)
        return replace(cell, minibatch=round(one.minibatch * times), rate=rate, peak=one.peak * times, seed=seed)

    def best(self, step: int, go: Go) -> StudyCell:
        """The run of a size with seed 0 at its best rate."""
        rate = self.one.best(go).rate
        factor = best_of(AUTO_FIRST, lambda f: go(self.cell(step, rate * f)), MOST_TRIALS, self.one.measure)
        return self.cell(step, rate * factor)

    def __call__(self, go: Go) -> list[Row]:
        one = by_seed(self.one(go))
        cells: dict[int, StudyCell] = {}
        done: dict[tuple[int, int], Row] = {}

        def usable(step: int, seed: int) -> bool:
            cells[step] = cells.get(step) or self.best(step, go)
            done[step, seed] = done.get((step, seed)) or go(replace(cells[step], seed=seed))
            return loss(done[step, seed]) <= self.usable * one[seed]

        left = list(self.steps)
        while left:
            middle = left[len(left) // 2]
            left = [step for step in left if (step > middle if usable(middle, 0) else step < middle)]
        edge = max((step for step, _ in list(done) if usable(step, 0)), default=self.steps[0] - 1)
        while edge in self.steps and not all([usable(edge, seed) for seed in SEEDS]):
            edge -= 1
        if edge in self.steps and edge + 1 in self.steps:
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


def convergence(rows: Groups) -> Outcome:
    better = min(("fixed ring", "randomised ring"), key=lambda name: mean_loss(rows[name]))
    found, sync = ratio(rows[better], rows["delay-by-one"]), ratio(rows["synchronous"], rows["delay-by-one"])
    one = ", ".join(f"{name} {shown(ratio(rows[ALONE], rows[name]))}" for name in STRATEGIES)
    return Outcome(
        f"{shown(found)} against the {better}, at one learner's minibatch",
        below(found),
        f"against synchronous SGD {shown(sync)}; over one learner: {one}",
    )


def largest_minibatch(rows: Groups) -> Outcome:
    one = by_seed(rows[ALONE_SGD])
    if float("inf") in one.values():
        return Outcome("one learner diverged", "undecided")
    sizes = {name: largest(rows[f"{name}: largest"], one) for name in BISECTED}
    decentralised = max(sizes["randomised ring"], sizes["delay-by-one"])
    apart = _step(decentralised) - _step(sizes["synchronous"])
    verdict: Verdict = "agrees" if apart >= DECISIVE else "differs" if apart <= 0 else "undecided"
    ends = _step(decentralised) == STEPS[-1]  # it might be larger
    if not sizes["synchronous"] or (ends and verdict == "differs"):
        verdict = "undecided"
    told = "; ".join(f"{name}: {course_of(rows[f'{name}: largest'], one)}" for name in BISECTED)
    rate = rows[ALONE_SGD][0]["cell"]["rate"]
    why = f"loss over that of one learner, whose rate is {rate:g}: {told}"
    return Outcome(", ".join(f"{name} {size:,}" for name, size in sizes.items()), verdict, why)


def _step(size: int) -> int:
    """Place of a size in `STEPS`; -1 for 0."""
    return round(2 * math.log2(size / SGD.cell.minibatch)) if size else -1


def course_of(rows: Sequence[Row], one: Mapping[int, float]) -> str:
    sizes: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["cell"]["minibatch"], row["cell"]["seed"])):
        sizes.setdefault(row["cell"]["minibatch"], []).append(row)
    return ", ".join(f"{size:,} {_over_one(each, one)} (rate {rate_of(each)})" for size, each in sizes.items())


def _over_one(rows: Sequence[Row], one: Mapping[int, float]) -> str:
    return " and ".join(f"{loss(row) / one[row['cell']['seed']]:.2f}" for row in rows)


def rate_of(rows: Sequence[Row]) -> str:
    """The rate after the warm-up, before `Auto`."""
    return f"{rows[0]['cell']['rate'] * rows[0]['cell']['peak']:.3g}"


def averaged_moments(rows: Groups) -> str:
    found = {name: shown(ratio(rows["randomised ring"], rows[name])) for name in BEYOND}
    return "over the randomised ring with local moments: " + ", ".join(f"{k} {v}" for k, v in found.items())


def at_the_largest(rows: Groups) -> str:
    one = by_seed(rows[ALONE_SGD])
    found = {name: rows[f"{name}, largest size tried"] for name in BISECTED}
    told = ", ".join(f"{name} {_over_one(each, one)} (rate {rate_of(each)})" for name, each in found.items())
    size = round(SGD.cell.minibatch * 2 ** (STEPS[-1] / 2))
    return f"with {size:,} windows, loss over one learner's: {told}"


def _last(name: str) -> Group:
    return lambda go: [go(Largest(STRATEGIES[name]).best(STEPS[-1], go))]


RINGS: dict[str, System] = {name: system(name) for name in STRATEGIES}
CONVERGING = {name: group for name, group in RINGS.items() if name != "synchronous"}
GROUPS: dict[str, Group] = {
    ALONE: BLSTM,
    **RINGS,
    **further_seeds(CONVERGING),
    ALONE_SGD: SGD,
    **{f"{name}: largest": Largest(STRATEGIES[name]) for name in BISECTED},
    **beyond(BLSTM, learners=LEARNERS, machines=MACHINES),
    **{f"{name}, largest size tried": _last(name) for name in BISECTED},
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
            "with equally fast learners delay-by-one converges fastest",
            "fastest of the three at large minibatches",
            "its loss over that of the better ring at equal frames and one learner's minibatch, interval below 1",
            (ALONE, *STRATEGIES),
            convergence,
            tuple(BEYOND),
            averaged_moments,
            further=tuple(CONVERGING),
        ),
        Claim(
            "decentralised learners train with larger minibatches than synchronous SGD",
            "12,288 against 4,096 sequences (Zhang et al. 2019)",
            f"the largest minibatch at which all seeds stay within {USABLE} times one learner's loss is at least twice"
            " that of synchronous SGD; undecided between one and two times, if the sizes tried end there, or if none is"
            " usable with synchronous SGD",
            (ALONE_SGD, *(f"{name}: largest" for name in BISECTED)),
            largest_minibatch,
            tuple(f"{name}, largest size tried" for name in BISECTED),
            at_the_largest,
        ),
    ),
    MACHINES,
    (ALONE, *STRATEGIES, *BEYOND),
)
