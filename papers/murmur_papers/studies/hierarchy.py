"""Zhang, Cui et al. 2019: nodes as super-learners, 8 x 8.

The BLSTM. One learner has 12 windows a minibatch, 64 learners have 384 (six each), 32 times as many, like theirs from
256 to 8,192: synchronous SGD, ADPSGD on a randomised ring of 64, and ADPSGD among eight nodes with gradients summed
inside each node. Rates by the linear rule after a warm-up (`Auto`), and by the root of it: a learner's minibatch is
half of one learner's, so that the reference rate is half of its rate. 12.9 million frames give 1,600 turns.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

from murmur_papers.studies.base import SMALL
from murmur_papers.studies.machines import MACHINES as ALL
from murmur_papers.studies.run import loss
from murmur_papers.studies.study import (
    DELAY,
    ONE_SEED,
    SEEDS,
    Brief,
    Claim,
    Group,
    Groups,
    Outcome,
    Study,
    System,
    further_seeds,
)
from murmur_papers.studies.verdicts import NO_LOSS, below, holds, ratio, shown, speed_up, waiting, words_apart

MACHINES, LEARNERS, NODE, PUBLISHED = "zhang2019", 64, 8, 36.9
ALONE, NODES, SYNC, FLAT = "one learner", "hierarchy", "synchronous", "flat ring"
SAME_NODE = (NODE - 1) / (LEARNERS - 1)  # neighbours of a random ring that share a node
ALONE_TWICE, NODES_TWICE = "one learner, twice the frames", "hierarchy, twice the turns"
BETWEEN, CHOSEN = "hierarchy, a rate between its trials", "hierarchy, the chosen trial"
BETWEEN_WHOLE = "hierarchy, a rate between its trials, all frames"
BETWEEN_RATE, PART = 0.000841, 4  # the trials have one part in so many of the frames
LOST = {"agrees": "no loss", "differs": "a loss", "undecided": "undecided"}
RECORD = Path("results/bench/small_minibatches.json")
THEIRS, ONE_DEVICE = 128, 256  # sequences of a minibatch of their learners, and of one device
AVERAGED = f"SuperLearners(ADPSGD(randomized_ring, moments='averaged'), {NODE})"
LINEAR, ROOT = 0.5, 0.5 / 32**0.5
BEYOND = {
    "beyond: super-learners of eight, averaged moments": AVERAGED,
    "beyond: delay-by-one, averaged moments": DELAY,
}


def _wide(strategy: str, seeds: tuple[int, ...] = SEEDS, **change: object) -> System:
    settings = {"strategy": strategy, "learners": LEARNERS, "machines": MACHINES, "minibatch": 6, "grows": True}
    return System(SMALL, settings | change, trials=(LINEAR, ROOT), seeds=seeds)


def _nodes() -> System:
    return _wide(f"SuperLearners(ADPSGD(randomized_ring), {NODE})")


def kept(rows: Groups) -> Outcome:
    found, sync = ratio(rows[ALONE], rows[NODES]), ratio(rows[SYNC], rows[NODES])
    more, turns, between = words_apart(rows[ALONE], rows[NODES]), rows[NODES][0]["turns"], ""
    if BETWEEN_WHOLE in rows:
        short, whole = loss(rows[BETWEEN][0]), loss(rows[BETWEEN_WHOLE][0])
        between = (
            f"; a rate between the trials, {BETWEEN_RATE:g}, has the loss {short:.4f} with a quarter of the frames and"
            f" {whole:.4f} with all (seed 0), the chosen rate {loss(rows[CHOSEN][0]):.4f} and"
            f" {loss(rows[NODES][0]):.4f}"
        )
        if whole < loss(rows[NODES][0]):
            between += ", so that the claim is to be judged again at that rate"
    ratios = {name: shown(ratio(rows[ALONE], rows[name])) for name in BEYOND if name in rows}
    others = "".join(f"; {name} {told} of one learner's loss" for name, told in ratios.items())
    return Outcome(
        shown(found),
        below(found, NO_LOSS),
        f"{turns:,} turns here, about 66,000 there; against synchronous SGD {shown(sync)}, which has"
        f" {shown(ratio(rows[ALONE], rows[SYNC]))} of one learner's loss{more}{between}{others}",
    )


def longer(rows: Groups) -> str:
    """Ratio with twice the turns, and the losses behind it."""
    alone, nodes = rows[ALONE_TWICE], rows[NODES_TWICE]
    once, many, over = loss(rows[ALONE][0]), loss(alone[0]), ratio(rows[ALONE], nodes)
    told = f"with {nodes[0]['turns']:,} turns {shown(ratio(alone, nodes))}"
    if many <= once:
        return told
    held = [point[1] for point in alone[0]["curve"][-2:]]
    grown = f", growing from {held[0]:.4f} in the second half of its frames" if held[-1] > held[0] else ""
    return (
        f"{told}; but one learner overfits with these frames ({many:.4f} in place of {once:.4f}{grown}). Over one"
        f" learner with the frames of the claim, the hierarchy with twice the turns has {shown(over)}:"
        f" {LOST[below(over, NO_LOSS)]}"
    )


def fast(rows: Groups) -> Outcome:
    found = speed_up(rows[NODES])
    return Outcome(
        f"{found:.1f}x",
        holds(PUBLISHED / 1.5 <= found <= PUBLISHED * 1.5),
        "without the loss of speed of small minibatches, which is in theirs, and with the sums inside a node hidden"
        f" behind the backward pass; share of the time in which learners wait: {waiting(rows[NODES][0])}",
    )


def small(rows: Groups, record: Path = RECORD) -> str:
    """The speed-up if a sequence took as much longer in a small minibatch as the record of a GPU has it."""
    figures = json.loads(record.read_text(encoding="utf-8"))["figures"]
    longer_by = {name: figures[name]["of_a_sequence"][str(THEIRS)] for name in ("float32", "TF32")}
    told = " and ".join(f"{value:.2f} times in {name}" for name, value in longer_by.items())
    found = " and ".join(f"{speed_up(rows[NODES]) / value:.1f}x" for value in longer_by.values())
    return (
        f"with their network on an {figures['device']}, a sequence of a minibatch of {THEIRS} takes {told} as long as"
        f" one of {ONE_DEVICE} ({record.name}); speed-ups would be at least {found}, as longer gradients"
        " would hide more of the exchanges. A V100 has other figures"
    )


def fastest(rows: Groups) -> Outcome:
    machines = ALL[MACHINES]
    found = {name: speed_up(rows[name]) for name in (NODES, FLAT, SYNC)}
    step, card = machines.seconds(6 * 20.5), machines.through_the_card(2.0)
    spared, single = (max(step, machines.through_the_card(n)) for n in (2.0 * (1 - SAME_NODE), 1.0))
    readings = [found[FLAT], LEARNERS * step / spared, LEARNERS * step / single]  # speed-ups of the flat ring
    faster = [found[NODES] > max(ring, found[SYNC]) for ring in readings]
    return Outcome(
        ", ".join(f"{name} {value:.1f}x" for name, value in found.items()),
        holds(all(faster)) if all(faster) or not any(faster) else "undecided",
        f"a gradient takes {step:.3f} s, the flat ring's models {card:.3f} s through the card, for which its learners"
        f" wait (the table counts this as computing); if the {100 * SAME_NODE:.0f} % of neighbours that share a node"
        f" exchanged inside it, a step would take {spared:.3f} s, at most {readings[1]:.1f}x; with one neighbour in"
        f" place of two, as in the talk on the paper at Interspeech 2019, {single:.3f} s, at most {readings[2]:.1f}x",
    )


GROUPS: dict[str, Group] = {
    ALONE: SMALL,
    NODES: _nodes(),
    SYNC: _wide("SyncSGD()"),
    FLAT: replace(_wide("ADPSGD(randomized_ring)", ONE_SEED, models=2.0), decoded=()),  # its claim is about speed
    BETWEEN: Brief(_nodes(), {"rate": BETWEEN_RATE}, PART),
    BETWEEN_WHOLE: Brief(_nodes(), {"rate": BETWEEN_RATE, "decoded": True}, 1),
    CHOSEN: Brief(_nodes(), {}, PART),
    **further_seeds({ALONE: SMALL, NODES: _nodes()}),
    **{name: _wide(strategy) for name, strategy in BEYOND.items()},
    ALONE_TWICE: replace(SMALL, times=2, seeds=ONE_SEED, decoded=()),
    NODES_TWICE: replace(_nodes(), times=2, decoded=()),
}
STUDY = Study(
    "hierarchy",
    "Zhang et al. 2019",
    "Zhang, Cui, Finkler, Saon, Kayi, Buyuktosunoglu, Kingsbury, Kung, Picheny: A highly efficient distributed deep"
    " learning system for automatic speech recognition (arXiv 1907.05701, 2019)",
    "64 learners in nodes of eight: three seeds, but one of the flat ring, whose claim is about speed, and of one"
    " learner with twice the frames. On the virtual clock, a step of the flat ring takes at least the time that the"
    " models of all learners of a node need to pass through its network card. Without this rule learners would never"
    " wait for an exchange, and a ring on slow links would only average less often",
    GROUPS,
    (
        Claim(
            "32 times the minibatch without loss of quality",
            "7.6 / 13.2 % WER at 8,192; about 7.5 / 13.0 % at 256 (second-hand)",
            f"loss over one learner's at equal frames, interval below {NO_LOSS}",
            (ALONE, NODES, SYNC),
            kept,
            (ALONE_TWICE, NODES_TWICE),
            longer,
            no_loss=True,
            beside=(BETWEEN, BETWEEN_WHOLE, CHOSEN, *BEYOND),
            further=(ALONE, NODES),
        ),
        Claim(
            "64 learners are many times as fast",
            f"192 h to 5.2 h, {PUBLISHED}x",
            f"virtual speed-up between {PUBLISHED / 1.5:.1f} and {PUBLISHED * 1.5:.1f}",
            (NODES,),
            fast,
            cause=partial(small),
        ),
        Claim(
            "a hierarchy is faster than one flat ring and than synchronous SGD",
            "no figures known; the fast links inside a node are the reason for super-learners",
            "virtual speed-up above those of the other two, for each reading of the traffic of the flat ring; undecided"
            " if the readings disagree",
            (NODES, FLAT, SYNC),
            fastest,
        ),
    ),
    MACHINES,
    (ALONE, NODES, SYNC, *BEYOND),
)
