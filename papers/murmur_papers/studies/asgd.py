"""Cong, Kingsbury, Gosh, Saon, Zhou 2017: asynchronous SGD against K-step averaging, at 4 and at 20 learners.

The BLSTM: one learner; 4 learners with K-step averaging and with ASGD, 20 learners with K-step averaging whose K falls
from 4 to 1. All of these learners train: ASGD has a server in addition to them. The paper's "adaptive measures" are
unknown; a falling K takes their place. The sigmoid network repeats the two claims on accuracy with two seeds. A learner
of 20 has about eight windows of a minibatch, which stand for the paper's 128 sequences; so does one of 4 with 33.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from murmur_papers.studies import schedules
from murmur_papers.studies.base import BLSTM, DNN
from murmur_papers.studies.study import (
    AUTO_FIRST,
    ONE_SEED,
    SEEDS,
    TWO_SEEDS,
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
    further_seeds,
    undecided,
)
from murmur_papers.studies.verdicts import as_fast, fast, holds, ratio, shown, speed_up

MACHINES, FASTER = "cong2017", 6.1
K_STEP, ADAPTIVE = "KAVG(2, moments='averaged')", "AdaptiveKAVG(K=Geometric(4, 1), moments='averaged')"
ALONE, FOUR, SERVER, TWENTY = "one learner", "4, K-step", "4, ASGD", "20, adaptive"
TWICE, FOUR_TWICE, TWENTY_TWICE = ("one learner, twice the frames", "4, twice the turns", "20, twice the turns")
THEIRS = 33  # windows that stand for 4 x 128 sequences
ALONE_THEIRS, SERVER_THEIRS, FOUR_THEIRS = (f"{name}, their minibatch" for name in (ALONE, SERVER, FOUR))
BRIEF = 4  # parts of the frames, of which a run for its speed has one
SERVER_BRIEF, FOUR_BRIEF = (f"{name}, a quarter of the frames" for name in (SERVER_THEIRS, FOUR_THEIRS))
ALONE_DNN, FOUR_DNN, TWENTY_DNN = ("one learner, sigmoid", "4, K-step, sigmoid", "20, adaptive, sigmoid")
SMALL = Alone("blstm", minibatch=THEIRS)
SERVED = (1.0, 2.0)  # trials of ASGD


def _many(strategy: str, learners: int, trials: tuple[float, float] = AUTO_FIRST, alone: Alone = BLSTM) -> System:
    return System(alone, {"strategy": strategy, "learners": learners, "machines": MACHINES}, trials=trials)


def _sigmoid(strategy: str, learners: int) -> System:
    """A system of the sigmoid network, on the machines of `schedules`: only its losses count."""
    return replace(schedules.many(learners=learners, strategy=strategy), seeds=TWO_SEEDS, decoded=())


def _longer(group: Alone | System) -> Alone | System:
    return replace(group, times=2, seeds=TWO_SEEDS, decoded=())


def as_good(rows: Groups, name: str, sigmoid: str, published: float | None = None) -> Outcome:
    """Judge some learners against one, beside those of the sigmoid network."""
    n, other = rows[name][0]["cell"]["learners"], "not run yet"
    if {sigmoid, ALONE_DNN} <= rows.keys():
        other = shown(ratio(rows[ALONE_DNN], rows[sigmoid]))
    return against(
        rows[ALONE],
        rows[name],
        f"{n} learners",
        fast(rows[name]),
        as_fast(rows[name], published) if published else "",
        f"{rows[name][0]['turns']:,} turns; loss with the sigmoid network {other}",
    )


def four_longer(rows: Groups) -> str:
    return f"with twice the turns {shown(ratio(rows[TWICE], rows[FOUR_TWICE]))}"


def twenty_longer(rows: Groups) -> str:
    often = ratio(rows[ALONE], rows["20, K = 1"])
    return f"with twice the turns {shown(ratio(rows[TWICE], rows[TWENTY_TWICE]))}; with K = 1 {shown(often)}"


def poor_and_slow(rows: Groups) -> Outcome:
    """Judge ASGD against K-step averaging, both with the paper's minibatch, once all runs of it are there."""
    whole = {ALONE_THEIRS, SERVER_THEIRS, FOUR_THEIRS} <= rows.keys()
    four, server = (FOUR_THEIRS, SERVER_THEIRS) if whole else (FOUR, SERVER)
    slower = [speed_up(rows[name]) for name in ((server, four) if whole else (SERVER_BRIEF, FOUR_BRIEF))]
    alone, stale = rows[ALONE_THEIRS if whole else ALONE], rows[server][0]["staleness"]
    updates = "unknown" if stale is None else f"{stale:.1f} updates"
    why = (
        f"loss over one learner's: ASGD {shown(ratio(alone, rows[server]))}, K-step averaging"
        f" {shown(ratio(alone, rows[four]))}; mean staleness of ASGD {updates}; its server is a fifth device, so"
        " that one learner is on a second node, and its updates take no time; the paper's K is unknown"
    )
    speeds = "{:.1f} times as fast (K-step averaging {:.1f})".format(*slower)
    if whole:
        slow = f"below that of K-step averaging: {holds(slower[0] < slower[1])}"
        return against(rows[four], rows[server], "4 learners, ASGD over K-step averaging", speeds, slow, why)
    found, here = shown(ratio(rows[FOUR], rows[SERVER])), [speed_up(rows[name]) for name in (SERVER, FOUR)]
    there = "{:.1f} times as fast there, K-step averaging {:.1f}".format(*here)
    ours = f"4 learners, ASGD: {speeds} with their minibatch; loss over K-step averaging's {found} with ours ({there})"
    return undecided(ours, "different operating points", why)


JUDGED: dict[str, Alone | System] = {ALONE: BLSTM, FOUR: _many(K_STEP, 4), TWENTY: _many(ADAPTIVE, 20)}
GROUPS: dict[str, Group] = {
    **JUDGED,
    **further_seeds(JUDGED),
    SERVER: _many("ASGD()", 5, SERVED),
    ALONE_DNN: DNN,
    FOUR_DNN: _sigmoid(schedules.AVERAGING, 4),
    TWENTY_DNN: _sigmoid(ADAPTIVE, 20),
    **beyond(BLSTM, seeds=ONE_SEED, learners=20, machines=MACHINES),  # no verdict rests on them
    TWICE: _longer(BLSTM),
    FOUR_TWICE: _longer(_many(K_STEP, 4)),
    TWENTY_TWICE: _longer(_many(ADAPTIVE, 20)),
    "20, K = 1": replace(_many("KAVG(1, moments='averaged')", 20), seeds=TWO_SEEDS, decoded=()),
    SERVER_BRIEF: Brief(_many("ASGD()", 5, SERVED), {"minibatch": THEIRS}, BRIEF),
    FOUR_BRIEF: Brief(_many(K_STEP, 4), {"minibatch": THEIRS}, BRIEF),
    ALONE_THEIRS: SMALL,
    SERVER_THEIRS: replace(_many("ASGD()", 5, SERVED, SMALL), decoded=SEEDS),
    FOUR_THEIRS: replace(_many(K_STEP, 4, alone=SMALL), decoded=SEEDS),
}

STUDY = Study(
    "asgd",
    "Cong et al. 2017",
    "Cong, Kingsbury, Gosh, Saon, Zhou: Accelerating deep neural network learning for speech recognition on a cluster"
    " of GPUs (MLHPC 2017)",
    f"BLSTM: one learner; {K_STEP} and ASGD at 4, K falling from 4 to 1 at 20 learners that train; three seeds,"
    " but one of the systems beyond. Sigmoid network: two seeds, on the machines of `schedules`. The 20 learners have"
    f" the paper's minibatch, and so have 4 learners with {THEIRS} windows together",
    GROUPS,
    (
        Claim(
            '"Even with 4 GPUs, the overhead is significant, and the accuracies achieved are poor" (ASGD)',
            "",
            "loss and words of ASGD over those of K-step averaging at equal frames, and a virtual speed-up below that"
            " of K-step averaging, at one operating point: the minibatch of the paper",
            (ALONE, FOUR, SERVER, SERVER_BRIEF, FOUR_BRIEF),
            poor_and_slow,
            beside=(ALONE_THEIRS, SERVER_THEIRS, FOUR_THEIRS),
        ),
        Claim(
            '"with 4 GPUs achieves accuracies comparable to that achieved by the sequential implementation"',
            "",
            "loss and words over one learner's at equal frames",
            (ALONE, FOUR),
            partial(as_good, name=FOUR, sigmoid=FOUR_DNN),
            (TWICE, FOUR_TWICE),
            four_longer,
            no_loss=True,
            beside=(ALONE_DNN, FOUR_DNN),
            further=(ALONE, FOUR),
        ),
        Claim(
            '"20 GPUs. Ultimately our parallel implementation achieves better accuracies than the sequential'
            ' implementation with a 6.1 times speedup"',
            f"{FASTER}x",
            "loss and words over one learner's at equal frames, virtual speed-up at least theirs; the paper's adaptive"
            " measures are not known, and a falling K takes their place",
            (ALONE, TWENTY),
            partial(as_good, name=TWENTY, sigmoid=TWENTY_DNN, published=FASTER),
            (TWICE, TWENTY_TWICE, "20, K = 1"),
            twenty_longer,
            no_loss=True,
            beside=(ALONE_DNN, TWENTY_DNN),
            further=(ALONE, TWENTY),
        ),
    ),
    MACHINES,
)
