"""Cui et al. 2021: slow learners. Fixed ring, randomised ring, delay-by-one and synchronous SGD.

16 learners with a minibatch of 2,048 (128 a learner), IBM's schedule, the rate times 4: all equally fast, then learner
0 ten times slower. Half of the usual frames, seed 0.
"""

from __future__ import annotations

from dataclasses import replace

from murmur.studies.papers.cell import FRAMES, PASS, SECONDS_PER_FRAME, StudyCell
from murmur.studies.papers.rings import LEARNERS, PAPER, STRATEGIES
from murmur.studies.papers.run import loss
from murmur.studies.papers.study import Finding, Go, Groups, Study, holds

SLOW = 10.0


def runs(go: Go) -> Groups:
    """A run with equal learners and one with a slow learner, for every strategy."""
    found = {}
    for name, strategy in STRATEGIES.items():
        plain = StudyCell(strategy, LEARNERS, power=0.5, schedule="ibm", budget=PASS // 2)
        found[name] = [go(plain), go(replace(plain, slow=SLOW))]
    return found


def findings(rows: Groups) -> list[Finding]:
    """Time with a slow learner; consensus without one."""
    return [_stragglers(rows), _consensus(rows)]


def _stragglers(rows: Groups) -> Finding:
    times = {}
    for name in STRATEGIES:
        equal, slow = rows[name]
        times[name] = slow["seconds"] / equal["seconds"]
    rings, steps = ("fixed ring", "randomised ring"), ("synchronous", "delay-by-one")
    good = all(times[name] <= 1.2 for name in rings) and all(times[name] >= SLOW / 2 for name in steps)
    return Finding(
        "rings cope with slow learners, strategies in step do not",
        f"without numbers; all in step must take {SLOW:g} times as long, an ideal ring"
        f" {LEARNERS / (LEARNERS - 1 + 1 / SLOW):.2f} times",
        f"time with one learner of 16 ten times slower over time without: rings at most 1.2, the others at least"
        f" {SLOW / 2:g}",
        ", ".join(f"{name} {value:.2f}" for name, value in times.items()),
        holds(good),
        "learners wait, without and with the slow one, "
        + ", ".join(f"{name} {_waiting(rows, name)}" for name in STRATEGIES)
        + "; a ring still ends with the slow learner's last gradient, which takes"
        f" {SECONDS_PER_FRAME * FRAMES * SLOW:.1f} virtual s; held-out loss with it over that without "
        + ", ".join(f"{name} {_slow_loss(rows, name):.3f}" for name in STRATEGIES),
    )


def _waiting(rows: Groups, name: str) -> str:
    return " and ".join(f"{100 * row['waiting_share']:.0f} %" for row in rows[name])


def _slow_loss(rows: Groups, name: str) -> float:
    equal, slow = rows[name]
    return loss(slow) / loss(equal)


def _consensus(rows: Groups) -> Finding:
    apart = {name: rows[name][0]["consensus_distance"] for name in STRATEGIES}
    return Finding(
        "a randomised ring keeps learners closer together than a fixed one",
        "a larger spectral gap (Zhang et al. 2020); at 16 learners 0.46 against 0.05 (computed)",
        "its distance from the mean half way is smaller",
        ", ".join(f"{name} {value:.3f}" for name, value in apart.items() if value is not None),
        holds(apart["randomised ring"] < apart["fixed ring"]),
        "one seed, so chance is not excluded; 16 equally fast learners, minibatch 2,048",
    )


STUDY = Study(
    "stragglers",
    PAPER,
    "16 learners: fixed and randomised ring, delay-by-one, synchronous SGD; all equal, and one ten times slower;"
    " seed 0",
    runs,
    findings,
)
