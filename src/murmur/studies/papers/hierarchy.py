"""Zhang, Cui et al. 2019: nodes as super-learners, 8 x 8.

64 learners of 32 frames (a minibatch of 2,048, 32 times that of the one learner, like theirs from 256 to 8,192):
synchronous SGD, ADPSGD on a randomised ring of 64, and ADPSGD among eight nodes with gradients summed inside each node.
IBM's schedule and linear rate. Three seeds; one seed for the flat ring.
"""

from __future__ import annotations

from murmur.studies.papers.cell import StudyCell
from murmur.studies.papers.study import Finding, Go, Groups, Study, at_most, holds, ratio, seeded, shown, speed_up

LEARNERS, FRAMES = 64, 32
LOSS_ALLOWED, PUBLISHED = 1.02, 36.9


def runs(go: Go) -> Groups:
    """One learner of 64 frames, then the three at 64."""

    def wide(strategy: str) -> StudyCell:
        return StudyCell(strategy, LEARNERS, power=1.0, frames=FRAMES, schedule="ibm")

    return {
        "one learner": seeded(StudyCell(frames=64, schedule="ibm"), go),
        "hierarchy": seeded(wide("SuperLearners(ADPSGD(randomized_ring), 8)"), go),
        "synchronous": seeded(wide("SyncSGD()"), go),
        "flat ring": seeded(wide("ADPSGD(randomized_ring)"), go, (0,)),
    }


def findings(rows: Groups) -> list[Finding]:
    """Quality at 32 times the minibatch, and the clock."""
    alone, nodes, sync = (rows[name] for name in ("one learner", "hierarchy", "synchronous"))
    kept, against = ratio(alone, nodes), ratio(sync, nodes)
    fast = {name: speed_up(alone, rows[name]) for name in rows}
    updates = nodes[0]["cell"]["budget"] // (LEARNERS * FRAMES)
    traffic = {name: rows[name][0]["sent_bytes"] / LEARNERS / 2**30 for name in ("hierarchy", "flat ring")}
    return [
        Finding(
            "32 times the minibatch without loss of quality",
            "7.6 / 13.2 % WER at 8,192 against 7.5 / 13.0 % at 256",
            f"loss over one learner's, interval at most {LOSS_ALLOWED}",
            shown(kept),
            at_most(kept, LOSS_ALLOWED),
            f"{updates} minibatches of 2,048 in all here, about 66,000 of 8,192 there; against synchronous SGD with the"
            f" same minibatch {shown(against)}",
        ),
        Finding(
            "64 learners are many times as fast",
            f"192 h to 5.2 h, {PUBLISHED}x",
            f"virtual speed-up between {PUBLISHED / 1.5:.1f} and {PUBLISHED * 1.5:.1f}",
            f"{fast['hierarchy']:.1f}x",
            holds(PUBLISHED / 1.5 <= fast["hierarchy"] <= PUBLISHED * 1.5),
            f"without the loss of speed of small minibatches, which is in theirs; learners wait"
            f" {100 * nodes[0]['waiting_share']:.0f} % of the time",
        ),
        Finding(
            "a hierarchy is faster than one flat ring and than synchronous SGD",
            "the best of the three systems",
            "virtual speed-up above those of the other two",
            f"{fast['hierarchy']:.1f}x, flat ring {fast['flat ring']:.1f}x, synchronous {fast['synchronous']:.1f}x",
            holds(fast["hierarchy"] > max(fast["flat ring"], fast["synchronous"])),
            f"sent by a learner: {traffic['hierarchy']:.0f} GiB with nodes, {traffic['flat ring']:.0f} GiB on the flat"
            " ring, whose eight learners a node share one card",
        ),
    ]


STUDY = Study(
    "hierarchy",
    "Zhang, Cui, Finkler, Saon, Kayi, Buyuktosunoglu, Kingsbury, Kung, Picheny: A highly efficient distributed deep"
    " learning system for automatic speech recognition (arXiv 1907.05701, 2019)",
    "64 learners in nodes of eight: super-learners on a randomised ring, synchronous SGD, a flat ring; three seeds",
    runs,
    findings,
)
