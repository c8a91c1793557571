"""Zhang, Cui et al. 2019: nodes as super-learners, 8 x 8.

The BLSTM. One learner has 12 windows a minibatch, 64 learners have 384 (six each), 32 times as many, like theirs from
256 to 8,192: synchronous SGD, ADPSGD on a randomised ring of 64, and ADPSGD among eight nodes with gradients summed
inside each node. Rates by the linear rule after a warm-up (`Auto`), and by the root of it: a learner's minibatch is
half of one learner's, so that the reference rate is half of its rate. 12.9 million frames give 1,600 turns.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from murmur_papers.studies.base import SMALL
from murmur_papers.studies.machines import MACHINES as ALL
from murmur_papers.studies.study import (
    DELAY,
    ONE_SEED,
    SEEDS,
    Claim,
    Group,
    Groups,
    Outcome,
    Study,
    System,
    against,
    further_seeds,
)
from murmur_papers.studies.verdicts import as_fast, fast, holds, ratio, shown, speed_up, waiting

MACHINES, LEARNERS, NODE, PUBLISHED = "zhang2019", 64, 8, 36.9
ALONE, NODES, SYNC, FLAT = "one learner", "hierarchy", "synchronous", "flat ring"
SAME_NODE = (NODE - 1) / (LEARNERS - 1)  # neighbours of a random ring that share a node
ALONE_TWICE, NODES_TWICE = "one learner, twice the frames", "hierarchy, twice the turns"
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
    """Judge loss, words and speed of the hierarchy against one learner with a minibatch 32 times smaller."""
    sync, turns = shown(ratio(rows[SYNC], rows[NODES])), rows[NODES][0]["turns"]
    ratios = {name: ratio(rows[ALONE], rows[name]) for name in (SYNC, *BEYOND) if name in rows}
    others = "; ".join(f"{name} {shown(value)}" for name, value in ratios.items())
    return against(
        rows[ALONE],
        rows[NODES],
        f"{LEARNERS} learners in a randomised ring of {LEARNERS // NODE} nodes (theirs is fixed)",
        fast(rows[NODES]),
        as_fast(rows[NODES], PUBLISHED),
        f"32 times one learner's minibatch; {turns:,} turns here, about 66,000 there; against synchronous SGD {sync};"
        f" over one learner's loss: {others}; the speed is without the loss of small minibatches, which is in theirs,"
        f" and with the sums inside a node hidden behind the backward pass; learners wait {waiting(rows[NODES][0])}",
    )


def longer(rows: Groups) -> str:
    """Ratio with twice the turns and twice the frames, and the end of one learner's curve; the speed likewise."""
    alone, nodes = rows[ALONE_TWICE], rows[NODES_TWICE]
    held = [point[1] for point in alone[0]["curve"][-2:]]
    grown = f", where one learner's loss grows from {held[0]:.4f} half way to {held[-1]:.4f}"
    told = f"with {nodes[0]['turns']:,} turns {shown(ratio(alone, nodes))}{grown if held[-1] > held[0] else ''}"
    return f"{told}; {small(rows)}"


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
    "64 learners in nodes of eight, on a randomised ring of nodes where the paper's is fixed: three seeds, but one of"
    " the flat ring, whose claim is about speed, and of one learner with twice the frames. On the virtual clock, a step"
    " of the flat ring takes at least the time that the models of all learners of a node need to pass through its"
    " network card. Without this rule learners would never wait for an exchange, and a ring on slow links would only"
    " average less often",
    GROUPS,
    (
        Claim(
            '"a 7.6% WER on the Hub5-2000 Switchboard (SWB) test-set and a 13.2% WER on the Call-home (CH) test-set in'
            ' 5.2 hours"',
            f"on 64 V100; one: about 7.5 / 13.0 % in 192 h (second-hand), so that the speed-up is {PUBLISHED}x",
            "loss and words over one learner's at equal frames, virtual speed-up at least theirs",
            (ALONE, NODES, SYNC),
            kept,
            (ALONE_TWICE, NODES_TWICE),
            longer,
            no_loss=True,
            beside=tuple(BEYOND),
            further=(ALONE, NODES),
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
)
