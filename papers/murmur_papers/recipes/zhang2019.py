"""Zhang et al., Interspeech 2019 (arXiv 1907.05701): super-learners on an asynchronous ring, 8 nodes of 8 V100.

    murmur train zhang2019 --dry-run --no-steps
    murmur plan zhang2019
    murmur simulate zhang2019 --timing-only --timed-minibatches 12800
    murmur simulate zhang2019 --set scale=0.02 --set budget.minibatches=2000

Known: 64 V100 on 100 Gb/s Ethernet, sums inside nodes and ADPSGD among them, 8,192 sequences of all learners, 5.2 h
where one device took 192 h, 7.6 / 13.2 % word errors; linear warm-up. Recalled with medium confidence: 16 epochs,
warm-up over 10 of them, then times 1 / sqrt 2. Network: `swb2000`. Assumed: 8 devices a node, plain SGD.
"""

from __future__ import annotations

from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment, Published
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.schedule import LargeBatch
from murmur.strategies import ADPSGD, SuperLearners
from murmur.worlds.virtual.presets import preset
from murmur_papers.recipes.swb2000 import EPOCHS, HOURS, RATE, REFERENCE, compute_of, task_of

NODES, NODE_SIZE = 8, 8
LEARNERS = NODES * NODE_SIZE
PAPER = task_of(HOURS, sequences=128)
SIGMA = 0.05  # assumed: spread of step times, of a range of 0.02-0.1
PUBLISHED = Published(
    "Zhang et al. 2019, arXiv 1907.05701",
    hours={64: 5.2},
    speed_ups={64: 36.9},
    note="36.9 is 192 h over 5.2 h; a talk gives the 192 h",
)


def experiment(scale: float = 1.0) -> Experiment:
    """H-ADPSGD on 8 super-learners of 8.

    Args:
        scale: size relative to the paper's, above 0 and at most 1; the clock and the factor on the rate stay.
    """
    task = PAPER.at(scale)
    return Experiment(
        task,
        SuperLearners(ADPSGD(), NODE_SIZE),
        Budget(epochs=EPOCHS),
        SGD(RATE),
        LargeBatch(LEARNERS * PAPER.chunks.size, REFERENCE),
        preset("v100-ethernet").cluster(LEARNERS, compute_of(PAPER, SIGMA), PAPER.message_bytes),
        scaling=Fixed(),  # as in the paper
        published=PUBLISHED if scale == 1 else None,
    )
