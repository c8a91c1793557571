"""Cui et al. 2021: slow learners. Fixed ring, randomised ring, delay-by-one and synchronous SGD.

The runs of `rings` with seed 0, and the same with one of 16 learners ten times slower.
"""

from __future__ import annotations

from murmur_papers.studies.base import BLSTM
from murmur_papers.studies.rings import LEARNERS, MACHINES, PAPER, STRATEGIES, system
from murmur_papers.studies.study import (
    SUPER,
    TWO_SEEDS,
    Brief,
    Claim,
    Group,
    Groups,
    Outcome,
    Study,
    System,
    compared,
    further_seeds,
    undecided,
)
from murmur_papers.studies.verdicts import holds, ratio, refuse_ended, shown, waiting

SLOW, COPES = 10.0, 1.2  # slowness of a learner; times the seconds without it, at most
RINGS, IN_STEP = ("fixed ring", "randomised ring"), ("synchronous", "delay-by-one")
SLOWED = {name: f"{name}, one slow" for name in STRATEGIES}
BEYOND = "beyond: super-learners of two"
SUPER_LEARNERS = System(BLSTM, {"strategy": SUPER, "learners": LEARNERS, "machines": MACHINES}, seeds=TWO_SEEDS)


def _slowed(plain: System) -> Group:
    return Brief(plain, {"slow": SLOW}, 1)


def coping(rows: Groups) -> Outcome:
    refuse_ended(rows[name][0] for name in (*STRATEGIES, *SLOWED.values()))
    times = {name: rows[SLOWED[name]][0]["seconds"] / rows[name][0]["seconds"] for name in STRATEGIES}
    good = all(times[name] <= COPES for name in RINGS) and all(times[name] >= SLOW / 2 for name in IN_STEP)
    waits = ", ".join(f"{name} {waiting(rows[name][0])} and {waiting(rows[SLOWED[name]][0])}" for name in STRATEGIES)
    losses = ", ".join(f"{n} {shown(ratio(rows[n][:1], rows[SLOWED[n]]))}" for n in STRATEGIES)
    told = ", ".join(f"{name} {value:.2f}" for name, value in times.items())
    return Outcome(
        f"{LEARNERS} learners, one {SLOW:g} times slower, times the seconds without it: {told}",
        holds(good),
        f"learners wait, without and with the slow one, {waits}; held-out loss with it over that without: {losses}",
    )


def nearness(rows: Groups) -> Outcome:
    if any(row["consensus_distance"] is None for name in RINGS for row in rows[name]):
        return undecided("unknown", "some rows have no distance half way")
    fixed, randomised = RINGS
    found = ratio(rows[fixed], rows[randomised], of=lambda row: float(row["consensus_distance"]))
    return compared(found, f"{LEARNERS} learners: distance over that of the fixed ring {shown(found)}")


GROUPS: dict[str, Group] = {
    **{name: system(name) for name in STRATEGIES},
    **further_seeds({name: system(name) for name in RINGS}),
    **{SLOWED[name]: _slowed(system(name)) for name in STRATEGIES},
    BEYOND: SUPER_LEARNERS,
    f"{BEYOND}, one slow": _slowed(SUPER_LEARNERS),
}
STUDY = Study(
    "stragglers",
    "Cui et al. 2021",
    PAPER,
    f"16 learners, all equal (the runs of `rings`) and one {SLOW:g} times slower; seed 0",
    GROUPS,
    (
        Claim(
            '"ADPSGD with fixed and randomized communication patterns cope well with slow learners"',
            f"without numbers; a lock-step strategy must take {SLOW:g} times as long, an ideal ring"
            f" {LEARNERS / (LEARNERS - 1 + 1 / SLOW):.2f} times",
            "time with one of 16 learners ten times slower, divided by the time with equal learners: at most"
            f" {COPES:g} for the rings, at least {SLOW / 2:g} for the others",
            (*STRATEGIES, *SLOWED.values()),
            coping,
        ),
        Claim(
            "a randomised ring keeps learners closer together than a fixed one",
            "a larger spectral gap (Zhang et al. 2020); at 16 learners 0.46 against 0.05 (computed; for the random one"
            " 1 less the root mean square of the contraction)",
            "its distance from the mean half way over that of the fixed ring",
            RINGS,
            nearness,
            further=RINGS,
        ),
    ),
    MACHINES,
)
