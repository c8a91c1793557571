"""Su and Chen 2015: model averaging with natural gradient, pre-training and schedules.

4, 8, 16 and 32 learners that average their models every two turns; 16 and 32 in every 16th turn too. At 16: SGD and
natural gradient, each from random weights and from a stack of restricted Boltzmann machines; natural gradient with
three schedules.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from murmur_papers.studies.base import DNN
from murmur_papers.studies.networks import DNN as NETWORK
from murmur_papers.studies.study import (
    ONE_SEED,
    SEEDS,
    Alone,
    Brief,
    Claim,
    Group,
    Groups,
    Outcome,
    Study,
    System,
    against,
    beyond,
    undecided,
)
from murmur_papers.studies.verdicts import as_fast, fast, mean_loss, not_alike, ratio, shown, together

MACHINES, NUMBERS, PUBLISHED = "su_chen2015", (4, 8, 16, 32), {16: 9.3, 32: 17.0}
CLAIMED = {
    16: '"a 9.3 times speedup is achieved using 16 GPUs [...] with limited decoding accuracy loss"',
    32: '"17 times speedup using 32 GPUs with limited decoding accuracy loss"',
}
AVERAGING = "KAVG(2, moments='averaged')"
ALONE, ALONE_SGD, SIXTEEN = "one learner", "one learner, SGD", "16 learners"
SGD = Alone("dnn", optimizer="SGD", seeds=ONE_SEED, decoded=ONE_SEED)
SHAPES = {SIXTEEN: "falling to a tenth", "16, IBM's schedule": "IBM's", "16, constant rate": "constant"}
TRIALS = (1.0, 2.0)
RARELY = "KAVG(16, moments='averaged')"
SENDS_LESS = {"local momenta": "KAVG(2)", "averages every 16 turns": RARELY}
BRIEF = 16  # parts of the frames, of which a run for its speed has one


def many(alone: Alone = DNN, learners: int = 16, **change: object) -> System:
    settings = {"strategy": AVERAGING, "learners": learners, "machines": MACHINES, **change}
    return System(alone, settings, trials=TRIALS)


def natural(rows: Groups) -> Outcome:
    alone = shown(ratio(rows[ALONE_SGD], rows[ALONE])) if ALONE_SGD in rows else "not run yet"
    return _helps(rows, "16, SGD", SIXTEEN, f"one learner gains from it too: {alone}")


def pretrained(rows: Groups) -> Outcome:
    more = (
        f"with natural gradient {shown(ratio(rows[SIXTEEN], rows['16, stack']))}; pre-training took {NETWORK.layers}"
        " passes over the speech, which the frames of a run do not count; a run makes 3.5; there is no run of one"
        " learner from the stack"
    )
    return _helps(rows, "16, SGD", "16, SGD, stack", more)


def _helps(rows: Groups, without: str, with_it: str, why: str) -> Outcome:
    speeds = f"{fast(rows[with_it])} (without it {fast(rows[without])})"
    return against(rows[without], rows[with_it], "16 learners with it over 16 without it", speeds, why=why)


def shape(rows: Groups) -> Outcome:
    kept = dict(zip(SHAPES, together([rows[name] for name in SHAPES])[0], strict=True))
    if not any(kept.values()):
        return undecided("not compared", "no seed has all schedules on one device")
    ordered = sorted(SHAPES, key=lambda name: mean_loss(kept[name]))
    best, worst = ordered[0], ordered[-1]
    told = ", ".join(f"{SHAPES[name]} {mean_loss(kept[name]):.4f}" for name in ordered)
    return Outcome(
        f"16 learners: {SHAPES[best]} over {SHAPES[worst]} {shown(ratio(rows[worst], rows[best]))}",
        not_alike([rows[name] for name in SHAPES]),
        f"{told}, at {len(kept[best])} seeds",
    )


def faster(rows: Groups, n: int) -> Outcome:
    """Judge speed and accuracy of n learners at one operating point: an average in every 16th turn."""
    often, brief, whole = f"{n} learners", f"{n}, averages every 16 turns", f"{n}, K = 16"
    local = f"{n}, local momenta"
    why = (
        "the virtual network has no reading of data and no software; the K, minibatch and machines of the paper are not"
        f" known{f'; with local momenta and K = 2 {fast(rows[local])}' if local in rows else ''}"
    )
    if whole in rows:
        speed, reached = f"{fast(rows[whole])} at K = 16", as_fast(rows[whole], PUBLISHED[n])
        return against(rows[ALONE], rows[whole], f"{n} learners", speed, reached, why)
    at_two = f"loss {shown(ratio(rows[ALONE], rows[often]))} at K = 2 ({fast(rows[often])} there)"
    short = f"{fast(rows[brief])} at K = 16 (a short run)"
    return undecided(f"{n} learners: {short}; {at_two}", "different operating points", why)


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
    **{f"{n}, K = 16": replace(many(learners=n, strategy=RARELY), decoded=SEEDS) for n in PUBLISHED},
    **{
        f"{n}, {name}": Brief(many(learners=n), {"strategy": strategy}, BRIEF)
        for name, strategy in SENDS_LESS.items()
        for n in PUBLISHED
    },
}
STUDY = Study(
    "schedules",
    "Su and Chen 2015",
    "Su, Chen: Experiments on parallel training of deep neural network using model averaging (arXiv 1507.01239, 2015)",
    f"4 to 32 learners, {AVERAGING} and {RARELY}: SGD and natural gradient, from random weights and from a stack of"
    " pre-trained layers (restricted Boltzmann machines), three schedules; three seeds, but one of the systems beyond",
    GROUPS,
    (
        Claim(
            '"NG-SGD and RBM pretraining benefits parameter-averaging based model training": NG-SGD',
            "",
            "loss with it over loss without it at 16 learners; words likewise",
            ("16, SGD", SIXTEEN, ALONE),
            natural,
            beside=(ALONE_SGD,),
        ),
        Claim(
            '"NG-SGD and RBM pretraining benefits parameter-averaging based model training": RBM pretraining',
            "",
            "loss from the stack over loss from random weights at 16 learners with SGD; words likewise",
            ("16, SGD", "16, SGD, stack", SIXTEEN, "16, stack"),
            pretrained,
        ),
        Claim(
            '"explore the best setups in term of different learning rate schedules"',
            "several were studied; which won could not be read",
            "better if the losses of the three schedules are not all alike (5 %, F test over seeds); else undecided",
            tuple(SHAPES),
            shape,
        ),
        *(
            Claim(
                told,
                f"{PUBLISHED[n]:g}x",
                "loss, words and virtual speed-up of one operating point, K = 16, over one learner at equal frames",
                (ALONE, f"{n} learners", f"{n}, averages every 16 turns"),
                partial(faster, n=n),
                beside=(f"{n}, K = 16", f"{n}, local momenta"),
            )
            for n, told in CLAIMED.items()
        ),
    ),
    MACHINES,
)
