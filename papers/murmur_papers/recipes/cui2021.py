"""Cui et al. 2021 (arXiv 2110.11199): decentralised SGD of a BLSTM on 2,000 hours, 128 V100.

    murmur train cui2021 --dry-run --no-steps
    murmur plan cui2021 --strategy 'ADPSGD(randomized_ring)' --strategy DelayByOne --strategy 'ADPSGD(ring)'
    murmur simulate cui2021 --timing-only --timed-minibatches 25600
    murmur simulate cui2021 --set scale=0.02 --set budget.minibatches=2000

Known: 2,000 hours of Switchboard, 128 V100, less than 2 hours (in the group's paper of 2020 on IBM P9 1.98 h, with 7.7
and 13.3 % word errors); fixed and randomised rings and delay-by-one. Network and schedule: `swb2000`. Assumed: 64
sequences a learner (8,192 of all), plain SGD.
"""

from __future__ import annotations

from murmur.core.mixing import randomized_ring
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment, Published
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.schedule import LargeBatch
from murmur.strategies import ADPSGD
from murmur.worlds.virtual.presets import preset
from murmur_papers.recipes.swb2000 import EPOCHS, HOURS, RATE, REFERENCE, compute_of, task_of

LEARNERS = 128
PAPER = task_of(HOURS, sequences=64)  # sequences: assumed
SIGMA = 0.05  # assumed: spread of step times, of a range of 0.02-0.1
PUBLISHED = Published(
    "Cui et al. 2021, arXiv 2110.11199",
    hours={128: 1.98},
    note="the abstract says less than 2 h; 1.98 h is of arXiv 2002.01119, whose strategy could not be read",
)


def experiment(scale: float = 1.0) -> Experiment:
    """ADPSGD on the randomised ring of 128 learners; `--strategy DelayByOne` for delay-by-one.

    Args:
        scale: size relative to the paper's, above 0 and at most 1; the clock and the factor on the rate stay.
    """
    task = PAPER.at(scale)
    return Experiment(
        task,
        ADPSGD(randomized_ring),
        Budget(epochs=EPOCHS),
        SGD(RATE),
        LargeBatch(LEARNERS * PAPER.chunks.size, REFERENCE),
        preset("v100-power9").cluster(LEARNERS, compute_of(PAPER, SIGMA), PAPER.message_bytes),
        scaling=Fixed(),  # as in the paper
        published=PUBLISHED if scale == 1 else None,
    )
