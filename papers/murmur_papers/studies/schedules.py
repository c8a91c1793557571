"""Su and Chen 2015: model averaging with natural gradient, pre-training and schedules.

4, 8, 16 and 32 learners that average their models every two turns. At 16: SGD and natural gradient, each from random
weights and from a stack of restricted Boltzmann machines; natural gradient with three schedules.
"""

from __future__ import annotations

from dataclasses import replace

from murmur_papers.studies.base import DNN
from murmur_papers.studies.networks import DNN as NETWORK
from murmur_papers.studies.study import (
    BEYOND,
    ONE_SEED,
    Alone,
    Brief,
    Claim,
    Group,
    Groups,
    Outcome,
    Study,
    System,
    beyond,
)
from murmur_papers.studies.verdicts import NO_LOSS, below, holds, mean_loss, not_alike, ratio, shown, speed_up, wer

MACHINES, NUMBERS, PUBLISHED = "su_chen2015", (4, 8, 16, 32), {16: 9.3, 32: 17.0}
AVERAGING = "KAVG(2, moments='averaged')"
ALONE, ALONE_SGD, SIXTEEN = "one learner", "one learner, SGD", "16 learners"
SGD = Alone("dnn", optimizer="SGD", seeds=ONE_SEED, decoded=ONE_SEED)
SHAPES = {SIXTEEN: "falling to a tenth", "16, IBM's schedule": "IBM's", "16, constant rate": "constant"}
TRIALS = (1.0, 2.0)
SENDS_LESS = {"local momenta": "KAVG(2)", "averages every 16 turns": "KAVG(16, moments='averaged')"}
BRIEF = 16  # parts of the frames, of which a run for its speed has one


def many(alone: Alone = DNN, learners: int = 16, **change: object) -> System:
    settings = {"strategy": AVERAGING, "learners": learners, "machines": MACHINES, **change}
    return System(alone, settings, trials=TRIALS)


def natural(rows: Groups) -> Outcome:
    found, alone = ratio(rows["16, SGD"], rows[SIXTEEN]), "not run yet"
    if ALONE_SGD in rows:
        alone = shown(ratio(rows[ALONE_SGD], rows[ALONE]))
    return Outcome(shown(found), below(found), f"one learner gains from it too: {alone}")


def pretrained(rows: Groups) -> Outcome:
    plain = ratio(rows["16, SGD"], rows["16, SGD, stack"])
    both = ratio(rows[SIXTEEN], rows["16, stack"])
    more = (
        f"pre-training took {NETWORK.layers} passes over the speech, which the frames of a run do not count; a run"
        " makes 3.5; there is no run of one learner from the stack"
    )
    return Outcome(shown(plain), below(plain), f"with natural gradient {shown(both)}; {more}")


def shape(rows: Groups) -> Outcome:
    ordered = sorted(SHAPES, key=lambda name: mean_loss(rows[name]))
    found = ratio(rows[ordered[-1]], rows[ordered[0]])
    told = ", ".join(f"{SHAPES[name]} {mean_loss(rows[name]):.4f}" for name in ordered)
    return Outcome(f"best over worst {shown(found)}; {told}", not_alike([rows[name] for name in ordered]))


def accuracy(rows: Groups) -> Outcome:
    found = {n: ratio(rows[ALONE], rows[f"{n} learners"]) for n in NUMBERS}
    rates = {n: wer(rows[f"{n} learners"]) for n in NUMBERS}
    told = ", ".join(f"{n}: {w.value:.1f} %" for n, w in rates.items() if w is not None)
    others = ", ".join(f"{n} learners {shown(found[n])}" for n in NUMBERS if n != 16)
    return Outcome(shown(found[16]), below(found[16], NO_LOSS), f"{others}; WER of seed 0: {told}")


def longer(rows: Groups) -> str:
    found = ratio(rows["one learner, twice the frames"], rows["16, twice the turns"])
    turns = rows["16, twice the turns"][0]["turns"]
    return f"with twice the frames ({turns:,} turns), 16 learners over one learner {shown(found)}"


def clock(rows: Groups) -> Outcome:
    found = {n: speed_up(rows[f"{n} learners"]) for n in NUMBERS}
    return Outcome(
        ", ".join(f"{n}: {value:.1f}x" for n, value in found.items()),
        holds(all(found[n] >= value for n, value in PUBLISHED.items())),
        "the virtual network has no reading of data and no software; theirs is not known",
    )


def clocks(rows: Groups) -> str:
    speeds = {name: {n: speed_up(rows[f"{n}, {name}"]) for n in PUBLISHED} for name in SENDS_LESS}
    told = (f"{name} {', '.join(f'{n}: {x:.1f}x' for n, x in found.items())}" for name, found in speeds.items())
    return f"the judged runs send weights and momenta in every second turn; by short runs, {'; '.join(told)}"


GROUPS: dict[str, Group] = {
    ALONE: DNN,
    **{f"{n} learners": many(learners=n) for n in NUMBERS},
    ALONE_SGD: replace(SGD, decoded=()),
    "16, SGD": many(SGD),
    "16, SGD, stack": many(SGD, stack=True),
    "16, stack": many(stack=True),
    "16, IBM's schedule": many(schedule="ibm"),
    "16, constant rate": many(schedule="constant"),
    **beyond(DNN, seeds=ONE_SEED, learners=16, machines=MACHINES),  # no verdict rests on them
    "one learner, twice the frames": replace(DNN, times=2, decoded=()),
    "16, twice the turns": replace(many(), times=2, decoded=()),
    **{
        f"{n}, {name}": Brief(many(learners=n), {"strategy": strategy}, BRIEF)
        for name, strategy in SENDS_LESS.items()
        for n in PUBLISHED
    },
}
STUDY = Study(
    "schedules",
    "Su & Chen 2015",
    "Su, Chen: Experiments on parallel training of deep neural network using model averaging (arXiv 1507.01239, 2015)",
    f"4 to 32 learners, {AVERAGING}: SGD and natural gradient, from random weights and from a stack of pre-trained"
    " layers (restricted Boltzmann machines), three schedules; three seeds, but one of the systems beyond",
    GROUPS,
    (
        Claim(
            "natural gradient helps averaging",
            "helps",
            "loss with it over loss without it at 16 learners, interval below 1",
            ("16, SGD", SIXTEEN, ALONE),
            natural,
            beside=(ALONE_SGD,),
        ),
        Claim(
            "pre-training helps averaging",
            "helps",
            "loss from the stack over loss from random weights at 16 learners with SGD, interval below 1",
            ("16, SGD", "16, SGD, stack", SIXTEEN, "16, stack"),
            pretrained,
        ),
        Claim(
            "the schedule matters",
            "several were studied; which won could not be read",
            "losses of the three schedules are not all alike (5 %, F test over seeds); else undecided",
            tuple(SHAPES),
            shape,
        ),
        Claim(
            "a small loss of accuracy at 16",
            "small",
            f"loss over one learner's at equal frames, interval below {NO_LOSS}",
            (ALONE, *(f"{n} learners" for n in NUMBERS)),
            accuracy,
            ("one learner, twice the frames", "16, twice the turns"),
            longer,
            no_loss=True,
        ),
        Claim(
            "speed-up at 16 and 32",
            "9.3x at 16, 17x at 32",
            "virtual speed-ups at least as high",
            tuple(f"{n} learners" for n in NUMBERS),
            clock,
            tuple(f"{n}, {name}" for name in SENDS_LESS for n in PUBLISHED),
            clocks,
        ),
    ),
    MACHINES,
    (ALONE, *(f"{n} learners" for n in NUMBERS), "16, SGD", "16, SGD, stack", "16, stack", *BEYOND),
)
