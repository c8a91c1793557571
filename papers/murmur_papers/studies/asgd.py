"""Cong, Kingsbury, Gosh, Saon, Zhou 2017: asynchronous SGD against K-step averaging, at 4 and at 20 learners.

The BLSTM: one learner; 4 learners with K-step averaging and with ASGD, 20 learners with K-step averaging whose K falls
from 4 to 1. All of these learners train: ASGD has a server in addition to them. The paper's "adaptive measures" are
unknown; a falling K takes their place. The sigmoid network repeats the two claims on accuracy with two seeds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from murmur_papers.studies import schedules
from murmur_papers.studies.base import BLSTM, DNN
from murmur_papers.studies.study import (
    BEYOND,
    ONE_SEED,
    TWO_SEEDS,
    Alone,
    Brief,
    Claim,
    Group,
    Groups,
    Outcome,
    Study,
    System,
    beyond,
    further_seeds,
)
from murmur_papers.studies.verdicts import NO_LOSS, below, holds, ratio, shown, speed_up, told_apart, words_apart

MACHINES, FASTER = "cong2017", 6.1
K_STEP, ADAPTIVE = "KAVG(2, moments='averaged')", "AdaptiveKAVG(K=Geometric(4, 1), moments='averaged')"
ALONE, FOUR, SERVER, TWENTY = "one learner", "4, K-step", "4, ASGD", "20, adaptive"
TWICE, FOUR_TWICE, TWENTY_TWICE = ("one learner, twice the frames", "4, twice the turns", "20, twice the turns")
SERVER_THEIRS, FOUR_THEIRS = "4, ASGD, their minibatch", "4, K-step, their minibatch"
BRIEF = 4  # parts of the frames, of which a run for its speed has one
THEIRS = 33  # windows that stand for 4 x 128 sequences
ALONE_DNN, FOUR_DNN, TWENTY_DNN = ("one learner, sigmoid", "4, K-step, sigmoid", "20, adaptive, sigmoid")


def _many(strategy: str, learners: int, trials: tuple[float, float] = (1.0, 0.5)) -> System:
    return System(BLSTM, {"strategy": strategy, "learners": learners, "machines": MACHINES}, trials=trials)


def _sigmoid(strategy: str, learners: int) -> System:
    """A system of the sigmoid network, on the machines of `schedules`: only its losses count."""
    return replace(schedules.many(learners=learners, strategy=strategy), seeds=TWO_SEEDS, decoded=())


def _longer(group: Alone | System) -> Alone | System:
    return replace(group, times=2, seeds=TWO_SEEDS, decoded=())


def as_good(rows: Groups, name: str, sigmoid: str) -> Outcome:
    """Judge some learners against one, beside those of the sigmoid network."""
    found = ratio(rows[ALONE], rows[name])
    more = words_apart(rows[ALONE], rows[name])
    turns = f"{rows[name][0]['turns']:,} turns; {told_apart(found)} one learner"
    other = "not run yet"
    if sigmoid in rows:
        other = f"{len(rows[sigmoid])} seeds, {shown(ratio(rows[ALONE_DNN], rows[sigmoid]))}"
    return Outcome(shown(found), below(found, NO_LOSS), f"{turns}; sigmoid network, {other}{more}")


def four_longer(rows: Groups) -> str:
    return f"with twice the turns {shown(ratio(rows[TWICE], rows[FOUR_TWICE]))}"


def twenty_longer(rows: Groups) -> str:
    often = ratio(rows[ALONE], rows["20, K = 1"])
    return f"with twice the turns {shown(ratio(rows[TWICE], rows[TWENTY_TWICE]))}; with K = 1 {shown(often)}"


def poor(rows: Groups) -> Outcome:
    found, stale = ratio(rows[SERVER], rows[FOUR]), rows[SERVER][0]["staleness"]
    told = "unknown" if stale is None else f"{stale:.1f} updates"
    more = words_apart(rows[SERVER], rows[FOUR])
    alone = f"{shown(ratio(rows[ALONE], rows[SERVER]))}{words_apart(rows[ALONE], rows[SERVER])}"
    return Outcome(
        shown(found),
        below(found),
        f"ASGD's loss over one learner's {alone}; mean staleness of ASGD {told}; K-step averaging against ASGD"
        f" {more.removeprefix('; ') or 'not compared in words'}",
    )


def damped(rows: Groups) -> str:
    return f"ASGD with gradients over their age, over plain ASGD {shown(ratio(rows[SERVER], rows['4, ASGD, damped']))}"


def slow(rows: Groups) -> Outcome:
    server, averaging = speed_up(rows[SERVER]), speed_up(rows[FOUR])
    sent = {name: f"{rows[name][0]['sent_bytes'] / 1e9:,.0f} GB" for name in (FOUR, SERVER)}
    waits = (
        f"learners of ASGD wait {100 * (1 - server / 4):.0f} % of the time, as each gradient waits for two messages; "
        "the server is a fifth device, so that one learner is on a second node; the updates of the server take no time;"
        f" K-step averaging sends {sent[FOUR]}, ASGD {sent[SERVER]}; the paper's K is unknown"
    )
    return Outcome(f"{server:.2f}x against {averaging:.2f}x", holds(server < averaging), waits)


def slow_at_their_size(rows: Groups) -> str:
    server, averaging = (speed_up(rows[name]) for name in (SERVER_THEIRS, FOUR_THEIRS))
    ours = "the runs above divide the minibatch of 20 learners among 4, so that each computes five times as long"
    theirs = f"with their 128 sequences on each of the 4 learners {server:.2f}x against {averaging:.2f}x"
    return f"{theirs}; {ours} for a message"


def fast(rows: Groups) -> Outcome:
    found, loss = speed_up(rows[TWENTY]), shown(ratio(rows[ALONE], rows[TWENTY]))
    why = f"at equal frames, with {loss} times the loss of one learner; theirs is to equal accuracy"
    return Outcome(f"{found:.1f}x", holds(found >= FASTER), why)


JUDGED: dict[str, Alone | System] = {
    ALONE: BLSTM,
    FOUR: _many(K_STEP, 4),
    SERVER: _many("ASGD()", 5, trials=(1.0, 2.0)),
    TWENTY: _many(ADAPTIVE, 20),
}
GROUPS: dict[str, Group] = {
    **JUDGED,
    **further_seeds(JUDGED),
    ALONE_DNN: DNN,
    FOUR_DNN: _sigmoid(schedules.AVERAGING, 4),
    TWENTY_DNN: _sigmoid(ADAPTIVE, 20),
    **beyond(BLSTM, seeds=ONE_SEED, learners=20, machines=MACHINES),  # no verdict rests on them
    TWICE: _longer(BLSTM),
    FOUR_TWICE: _longer(_many(K_STEP, 4)),
    TWENTY_TWICE: _longer(_many(ADAPTIVE, 20)),
    "20, K = 1": replace(_many("KAVG(1, moments='averaged')", 20), seeds=TWO_SEEDS, decoded=()),
    SERVER_THEIRS: Brief(_many("ASGD()", 5, trials=(1.0, 2.0)), {"minibatch": THEIRS}, BRIEF),
    FOUR_THEIRS: Brief(_many(K_STEP, 4), {"minibatch": THEIRS}, BRIEF),
    "4, ASGD, damped": replace(_many("ASGD(damping=by_age)", 5, trials=(1.0, 2.0)), seeds=TWO_SEEDS, decoded=()),
}

STUDY = Study(
    "asgd",
    "Cong et al. 2017",
    "Cong, Kingsbury, Gosh, Saon, Zhou: Accelerating deep neural network learning for speech recognition on a cluster"
    " of GPUs (MLHPC 2017)",
    f"BLSTM: one learner; {K_STEP} and ASGD at 4, K falling from 4 to 1 at 20 learners that train; three seeds,"
    " but one of the systems beyond. Sigmoid network: two seeds, on the machines of `schedules`",
    GROUPS,
    (
        Claim(
            "4 learners with K-step averaging are as good as one",
            "accuracy of sequential training",
            f"loss over one learner's at equal frames, interval below {NO_LOSS}",
            (ALONE, FOUR),
            partial(as_good, name=FOUR, sigmoid=FOUR_DNN),
            (TWICE, FOUR_TWICE),
            four_longer,
            no_loss=True,
            beside=(ALONE_DNN, FOUR_DNN),
            further=(ALONE, FOUR),
        ),
        Claim(
            "ASGD is poor at 4 learners",
            "poor accuracy",
            "K-step averaging's loss over ASGD's, interval below 1",
            (ALONE, FOUR, SERVER),
            poor,
            ("4, ASGD, damped",),
            damped,
            further=(ALONE, FOUR, SERVER),
        ),
        Claim(
            "adaptive measures at 20 learners are at least as good as one learner",
            "better accuracy than sequential",
            f"loss over one learner's at equal frames, interval below {NO_LOSS}",
            (ALONE, TWENTY),
            partial(as_good, name=TWENTY, sigmoid=TWENTY_DNN),
            (TWICE, TWENTY_TWICE, "20, K = 1"),
            twenty_longer,
            no_loss=True,
            beside=(ALONE_DNN, TWENTY_DNN),
            further=(ALONE, TWENTY),
        ),
        Claim(
            "ASGD is slow at 4 learners",
            "large overhead",
            "virtual speed-up below that of K-step averaging",
            (FOUR, SERVER),
            slow,
            (SERVER_THEIRS, FOUR_THEIRS),
            slow_at_their_size,
        ),
        Claim(
            "20 learners are several times as fast",
            f"{FASTER}x at 20",
            f"virtual speed-up at least {FASTER}",
            (ALONE, TWENTY),
            fast,
        ),
    ),
    MACHINES,
    (ALONE, FOUR, SERVER, TWENTY, *BEYOND),
)
