"""Cong, Kingsbury, Gosh, Saon and Zhou, MLHPC 2017: K-step averaging on 20 devices, against asynchronous SGD.

    murmur train cong2017 --dry-run --no-steps
    murmur plan cong2017
    murmur plan cong2017 --learners 5 --strategy ASGD       (4 learners and their server)
    murmur simulate cong2017 --set scale=0.02 --set budget.minibatches=2000

Known: 20 devices; K-step averaging, equal to sequential training on 4 devices, better and 6.1 times as fast on 20 with
"adaptive measures"; asynchronous SGD poor and slow on 4; sequential training takes over a day. Assumed, as nothing else
could be read: the network and the schedule of IBM's later papers at a minibatch of 256, 300 hours, 128 sequences a
learner, K = 8, P100 devices on 5 nodes. The adaptive measures are left out: `AdaptiveKAVG` has some of its own.
"""

from __future__ import annotations

from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment, Published
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.schedule import LargeBatch
from murmur.strategies import KAVG
from murmur.worlds.virtual.presets import preset
from murmur_papers.recipes.swb2000 import EPOCHS, P100_OVER_V100, RATE, REFERENCE, compute_of, task_of

LEARNERS = 20
PAPER = task_of(hours=300.0, sequences=128)  # assumed
K = 8  # assumed, of a range of 1-32
SIGMA = 0.1  # assumed: spread of step times, of a range of 0.05-0.3
PUBLISHED = Published(
    "Cong et al., MLHPC 2017",
    speed_ups={20: 6.1},
    note="the published speed-up is to equal accuracy, a prediction counts equal numbers of samples; sequential"
    " training took over a day",
)


def experiment(scale: float = 1.0) -> Experiment:
    """K-step averaging on 20 learners.

    Args:
        scale: size relative to the paper's, above 0 and at most 1; the clock stays.
    """
    task = PAPER.at(scale)
    return Experiment(
        task,
        KAVG(K),
        Budget(epochs=EPOCHS),
        SGD(RATE),
        LargeBatch(REFERENCE, REFERENCE),
        preset("p100-fdr").cluster(LEARNERS, compute_of(PAPER, SIGMA, P100_OVER_V100), PAPER.message_bytes),
        scaling=Fixed(),  # as in the paper
        published=PUBLISHED if scale == 1 else None,
    )
