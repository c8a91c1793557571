"""Cui et al. 2021: fixed ring, randomised ring and delay-by-one, and their largest minibatches.

16 learners, IBM's schedule, rates linear in the minibatch of all of them.

Largest: bisection over minibatches of 2^8 to 2^12 frames, seed 0, 60 updates of the largest: try the middle one of the
remaining sizes; go up if it trained, down if it diverged. A run has diverged if a loss is not finite, or if the final
held-out loss is above 0.9 of that of the class frequencies.
Large: three seeds at the largest minibatch at which all four trained, for the same number of frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from murmur.studies.comparison.rows import Row
from murmur.studies.papers.cell import StudyCell
from murmur.studies.papers.run import loss
from murmur.studies.papers.study import SEEDS, Finding, Go, Groups, Study, holds, lower, ratio, shown

LEARNERS = 16
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
EXPONENTS, UPDATES, DIVERGED = range(8, 13), 60, 0.9
BUDGET = UPDATES * 2 ** EXPONENTS[-1]


def large(strategy: str, batch: int, seed: int = 0) -> StudyCell:
    """A run with this minibatch, summed over all learners."""
    frames = batch // LEARNERS
    return StudyCell(strategy, LEARNERS, power=1.0, seed=seed, frames=frames, budget=BUDGET, schedule="ibm")


def diverged(row: Row) -> bool:
    """True if the run diverged by the rule above."""
    return row["ended"] is not None or loss(row) > DIVERGED * row["prior"]


def batch_of(row: Row) -> int:
    """Frames in a minibatch of all learners."""
    return int(row["cell"]["learners"] * row["cell"]["frames"])


def bisection(strategy: str, go: Go) -> list[Row]:
    """The runs in order."""
    left, done = list(EXPONENTS), []
    while left:
        middle = len(left) // 2
        done.append(go(large(strategy, 2 ** left[middle])))
        left = left[:middle] if diverged(done[-1]) else left[middle + 1 :]
    return done


def largest(rows: Sequence[Row]) -> int:
    """The largest minibatch that trained; 0 if none did."""
    return max((batch_of(row) for row in rows if not diverged(row)), default=0)


def runs(go: Go) -> Groups:
    """Bisections, then seeds at the largest minibatch that all strategies trained with."""
    found: dict[str, list[Row]] = {}
    for name, strategy in STRATEGIES.items():
        found[f"{name}: largest"] = bisection(strategy, go)
    common = min(largest(found[f"{name}: largest"]) for name in STRATEGIES)
    if common:
        for name, strategy in STRATEGIES.items():
            found[f"{name}: large"] = [go(large(strategy, common, seed)) for seed in SEEDS]
    return found


def findings(rows: Groups) -> list[Finding]:
    """Convergence with equally fast learners, the largest minibatch."""
    return [*_convergence(rows), _largest(rows)]


def _convergence(rows: Groups) -> list[Finding]:
    if "delay-by-one: large" not in rows:
        return []
    against: Mapping[str, float] = {
        name: sum(map(loss, rows[f"{name}: large"])) for name in ("fixed ring", "randomised ring")
    }
    ring = min(against, key=lambda name: against[name])
    found = ratio(rows[f"{ring}: large"], rows["delay-by-one: large"])
    sync = ratio(rows["synchronous: large"], rows["delay-by-one: large"])
    return [
        Finding(
            "with equally fast learners delay-by-one converges fastest at large minibatches",
            "fastest of the three",
            "its loss over that of the better ring at equal frames, interval below 1",
            f"{shown(found)} against the {ring}, minibatch {batch_of(rows['delay-by-one: large'][0]):,}",
            lower(found),
            f"against synchronous SGD {shown(sync)}",
        )
    ]


def _largest(rows: Groups) -> Finding:
    most = {name: largest(rows[f"{name}: largest"]) for name in STRATEGIES}
    ends = {name: ", ".join(f"{batch_of(r):,} {_end(r)}" for r in rows[f"{name}: largest"]) for name in STRATEGIES}
    rings = max(most["fixed ring"], most["randomised ring"])
    return Finding(
        "decentralised learners train with larger minibatches than synchronous SGD",
        "12,288 against 4,096 sequences (Zhang et al. 2019)",
        "the larger of the rings' largest minibatches is at least twice that of synchronous SGD",
        ", ".join(f"{name} {value:,}" for name, value in most.items()),
        holds(rings >= 2 * most["synchronous"]),
        "; ".join(f"{name}: {told}" for name, told in ends.items()),
    )


def _end(row: Row) -> str:
    return "diverged" if diverged(row) else f"{loss(row):.3f}"


STUDY = Study(
    "rings",
    PAPER,
    "16 learners: fixed and randomised ring, delay-by-one, synchronous SGD; the largest minibatch by"
    " bisection; three seeds at the largest that all can do",
    runs,
    findings,
)
