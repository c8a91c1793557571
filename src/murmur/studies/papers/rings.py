"""Cui et al. 2021: fixed ring, randomised ring and delay-by-one at 16 learners, and their largest minibatches.

Convergence: the BLSTM, 164 windows a minibatch of all learners, each strategy at its own rate.

Largest minibatch: plain SGD, IBM's schedule. Sizes of all learners are 164 times the roots of powers of two. The rate
is linear in the size, from that of a trial at four times 164, which is the usual rate of one learner times the
factors 1, 1/2 (a quarter of the frames). A size is usable if the held-out loss is at most 1.1 times that of one
learner with 164 windows and the same seed, at equal frames. A bisection with seed 0 finds the largest usable size. This
size is then run with seeds 1 and 2; while it is not usable with one of them, the next smaller size is run with all
seeds. The first size that is not usable is run with all seeds too, unless no size is usable. If the largest sizes of
two strategies are one step apart, the verdict is undecided, because one more seed or one fewer would change them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from murmur.studies.comparison.rows import Row
from murmur.studies.papers.base import BLSTM
from murmur.studies.papers.cell import StudyCell
from murmur.studies.papers.run import loss
from murmur.studies.papers.study import BEYOND, SEEDS, Alone, Claim, Go, Group, Groups, Outcome, Study, System, beyond
from murmur.studies.papers.verdicts import Verdict, below, mean_loss, ratio, shown

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
SGD = Alone("blstm", optimizer="SGD", decoded=())
STEPS, MIDDLE, USABLE = range(7), 4, 1.1
DECISIVE = 2  # steps, a factor of two
BISECTED = ("synchronous", "randomised ring", "delay-by-one")


def system(name: str) -> System:
    """A strategy at its best rate."""
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

    def __call__(self, go: Go) -> list[Row]:
        alone, reference = SGD(go), SGD.rate(go)
        tried = {}
        for rate in (reference, reference / 2):
            cell = self.cell(MIDDLE, rate)
            tried[rate] = go(replace(cell, budget=cell.budget // cell.setup.part))
        rate = min(tried, key=lambda rate: loss(tried[rate]))
        done: dict[tuple[int, int], Row] = {}

        def usable(step: int, seed: int) -> bool:
            done[step, seed] = done.get((step, seed)) or go(self.cell(step, rate, seed))
            return loss(done[step, seed]) <= USABLE * by_seed(alone)[seed]

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
    """Losses of one learner by seed."""
    return {row["cell"]["seed"]: loss(row) for row in alone}


def largest(rows: Sequence[Row], one: Mapping[int, float]) -> int:
    """Largest minibatch that is usable with all seeds; 0 if none is. `one`: losses of one learner by seed."""
    sizes: dict[int, list[bool]] = {}
    for row in rows:
        good = loss(row) <= USABLE * one[row["cell"]["seed"]]
        sizes.setdefault(row["cell"]["minibatch"], []).append(good)
    return max((size for size, good in sizes.items() if all(good) and len(good) == len(SEEDS)), default=0)


def convergence(rows: Groups) -> Outcome:
    """Judge delay-by-one against the better ring."""
    better = min(("fixed ring", "randomised ring"), key=lambda name: mean_loss(rows[name]))
    found, sync = ratio(rows[better], rows["delay-by-one"]), ratio(rows["synchronous"], rows["delay-by-one"])
    one = ", ".join(f"{name} {shown(ratio(rows[ALONE], rows[name]))}" for name in STRATEGIES)
    return Outcome(
        f"{shown(found)} against the {better}, at one learner's minibatch",
        below(found),
        f"against synchronous SGD {shown(sync)}; over one learner: {one}",
    )


def largest_minibatch(rows: Groups) -> Outcome:
    """Judge the largest usable minibatches."""
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
    told = "; ".join(f"{name}: {_course(rows[f'{name}: largest'], one)}" for name in BISECTED)
    rate = rows[ALONE_SGD][0]["cell"]["rate"]
    why = f"loss over that of one learner, whose rate is {rate:g}: {told}"
    return Outcome(", ".join(f"{name} {size:,}" for name, size in sizes.items()), verdict, why)


def _step(size: int) -> int:
    """Place of a size in `STEPS`; -1 for 0."""
    return round(2 * math.log2(size / SGD.cell.minibatch)) if size else -1


def _course(rows: Sequence[Row], one: Mapping[int, float]) -> str:
    ordered = sorted(rows, key=lambda row: (row["cell"]["minibatch"], row["cell"]["seed"]))
    each = (f"{row['cell']['minibatch']:,} {loss(row) / one[row['cell']['seed']]:.2f}" for row in ordered)
    return f"{', '.join(each)} (rate {ordered[0]['cell']['rate']:g} at {SGD.cell.minibatch})"


def averaged_moments(rows: Groups) -> str:
    """Ratios with averaged moments."""
    found = {name: shown(ratio(rows["randomised ring"], rows[name])) for name in BEYOND}
    return "over the randomised ring with local moments: " + ", ".join(f"{k} {v}" for k, v in found.items())


def half_rate(rows: Groups) -> str:
    """Ratios with a lower rate at the largest minibatch."""
    found: Mapping[str, str] = {
        name: f"{loss(rows[f'{name}, half the rate'][0]) / loss(rows[ALONE_SGD][0]):.2f}" for name in BISECTED
    }
    size = round(SGD.cell.minibatch * 2 ** (STEPS[-1] / 2))
    told = ", ".join(f"{name} {value}" for name, value in found.items())
    return f"with {size:,} windows and half of one learner's rate, loss over one's: {told}"


def _half(name: str) -> Group:
    search = Largest(STRATEGIES[name])
    return lambda go: [go(search.cell(STEPS[-1], SGD.rate(go) / 2))]


GROUPS: dict[str, Group] = {
    ALONE: BLSTM,
    **{name: system(name) for name in STRATEGIES},
    ALONE_SGD: SGD,
    **{f"{name}: largest": Largest(STRATEGIES[name]) for name in BISECTED},
    **beyond(BLSTM, learners=LEARNERS, machines=MACHINES),
    **{f"{name}, half the rate": _half(name) for name in BISECTED},
}
STUDY = Study(
    "rings",
    PAPER,
    "16 learners: fixed and randomised ring, delay-by-one, synchronous SGD with one learner's minibatch of 164 windows"
    " cut among them, three seeds; the largest usable minibatch by bisection with plain SGD, three seeds at the edge",
    GROUPS,
    (
        Claim(
            "with equally fast learners delay-by-one converges fastest at large minibatches",
            "fastest of the three",
            "its loss over that of the better ring at equal frames, interval below 1",
            (ALONE, *STRATEGIES),
            convergence,
            tuple(BEYOND),
            averaged_moments,
        ),
        Claim(
            "decentralised learners train with larger minibatches than synchronous SGD",
            "12,288 against 4,096 sequences (Zhang et al. 2019)",
            f"the largest minibatch at which all seeds stay within {USABLE} times one learner's loss is at least twice"
            " that of synchronous SGD; undecided between one and two times, if the sizes tried end there, or if none is"
            " usable with synchronous SGD",
            (ALONE_SGD, *(f"{name}: largest" for name in BISECTED)),
            largest_minibatch,
            tuple(f"{name}, half the rate" for name in BISECTED),
            half_rate,
        ),
    ),
    MACHINES,
    (ALONE, *STRATEGIES, *BEYOND),
)
