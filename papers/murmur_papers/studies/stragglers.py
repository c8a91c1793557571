"""Cui et al. 2021: slow learners. Fixed ring, randomised ring, delay-by-one and synchronous SGD.

The runs of `rings` with seed 0, and the same with one of 16 learners ten times slower.
"""

from __future__ import annotations

from murmur_papers.studies.base import BLSTM
from murmur_papers.studies.rings import LEARNERS, MACHINES, PAPER, STRATEGIES, system
from murmur_papers.studies.run import loss
from murmur_papers.studies.study import SUPER, TWO_SEEDS, Brief, Claim, Group, Groups, Outcome, Study, System
from murmur_papers.studies.verdicts import holds, refuse_ended, waiting

SLOW = 10.0
RINGS, IN_STEP = ("fixed ring", "randomised ring"), ("synchronous", "delay-by-one")
SLOWED = {name: f"{name}, one slow" for name in STRATEGIES}
BEYOND = "beyond: super-learners of two"
SUPER_LEARNERS = System(BLSTM, {"strategy": SUPER, "learners": LEARNERS, "machines": MACHINES}, seeds=TWO_SEEDS)


def _slowed(plain: System) -> Group:
    return Brief(plain, {"slow": SLOW}, 1)


def coping(rows: Groups) -> Outcome:
    refuse_ended(rows[name][0] for name in (*STRATEGIES, *SLOWED.values()))
    times = {name: rows[SLOWED[name]][0]["seconds"] / rows[name][0]["seconds"] for name in STRATEGIES}
    good = all(times[name] <= 1.2 for name in RINGS) and all(times[name] >= SLOW / 2 for name in IN_STEP)
    waits = ", ".join(f"{name} {waiting(rows[name][0])} and {waiting(rows[SLOWED[name]][0])}" for name in STRATEGIES)
    losses = ", ".join(f"{n} {loss(rows[SLOWED[n]][0]) / loss(rows[n][0]):.3f}" for n in STRATEGIES)
    return Outcome(
        ", ".join(f"{name} {value:.2f}" for name, value in times.items()),
        holds(good),
        f"learners wait, without and with the slow one, {waits}; held-out loss with it over that without: {losses}",
    )


def nearness(rows: Groups) -> Outcome:
    apart = {name: [row["consensus_distance"] for row in rows[name]] for name in RINGS}
    shown = {name: ["unknown" if d is None else f"{d:.3f}" for d in each] for name, each in apart.items()}
    told = ", ".join(f"{name} {' '.join(each)}" for name, each in shown.items())
    if any(None in each for each in apart.values()):
        return Outcome(told, "undecided", "some rows have no distance half way")
    closer = [random < fixed for fixed, random in zip(*apart.values(), strict=True)]
    return Outcome(
        told, "agrees" if all(closer) else "differs" if not any(closer) else "undecided", "one number for each seed"
    )


GROUPS: dict[str, Group] = {
    **{name: system(name) for name in STRATEGIES},
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
            "rings tolerate slow learners, lock-step strategies do not",
            f"without numbers; a lock-step strategy must take {SLOW:g} times as long, an ideal ring"
            f" {LEARNERS / (LEARNERS - 1 + 1 / SLOW):.2f} times",
            "time with one of 16 learners ten times slower, divided by the time with equal learners: at most 1.2 for"
            f" the rings, at least {SLOW / 2:g} for the others",
            (*STRATEGIES, *SLOWED.values()),
            coping,
        ),
        Claim(
            "a randomised ring keeps learners closer together than a fixed one",
            "a larger spectral gap (Zhang et al. 2020); at 16 learners 0.46 against 0.05 (computed; for the random one"
            " 1 less the root mean square of the contraction)",
            "its distance from the mean half way is smaller with every seed",
            RINGS,
            nearness,
        ),
    ),
    MACHINES,
)
