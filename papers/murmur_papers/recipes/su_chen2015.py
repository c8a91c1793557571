"""Su and Chen 2015 (arXiv 1507.01239): model averaging of a deep network on 300 hours of Switchboard.

    murmur train su_chen2015 --dry-run --no-steps
    murmur plan su_chen2015 --learners 32
    murmur simulate su_chen2015 --set scale=0.05 --set budget.minibatches=2000
    murmur train su_chen2015 --init STACK        (a pre-trained stack of restricted Boltzmann machines of this shape)

Known: a deep network on 300 h, averages of all models every few minibatches, natural gradient, pre-training, 16 and 32
devices, no start on one device. Recalled with low confidence: 7 hidden layers of 2,048, InfiniBand, K20 class. Assumed:
11 frames of 40 values, 9,000 states, 512 frames a minibatch and Kaldi's 20 epochs with a rate that falls to a tenth,
16 minibatches between averages, the rate.
"""

from __future__ import annotations

from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment, Published
from murmur.engine.optim.optimizer import NaturalGradientSGD
from murmur.engine.scaling import Fixed
from murmur.engine.schedule import Exponential
from murmur.speech.features.chunks import Chunks
from murmur.speech.models import Dnn
from murmur.strategies import KAVG
from murmur.worlds.virtual.cluster import LognormalSeconds
from murmur.worlds.virtual.presets import preset
from murmur_papers.tasks.declared import DeclaredTask

LEARNERS = 16  # also 32: --learners 32
PAPER = DeclaredTask(
    hours=300.0,
    inputs=40,  # assumed
    classes=9000,  # assumed
    network=Dnn(hidden=2048, layers=7, context=0),  # recalled, low
    chunks=Chunks(frames=1, left_frames=0, right_frames=0, size=512),  # assumed, of a range of 256-1,024
    joined=5,  # assumed
)
K = 16  # assumed: "every few minibatches", of a range of 5-40
RATE = 0.5  # assumed
REACHED_FLOPS = 1.26e12  # assumed: K20 class, of a range of 0.8-2.0 Tflop/s of 3.52 at best
SIGMA = 0.06  # assumed: spread of step times, of a range of 0.02-0.2
PUBLISHED = Published(
    "Su & Chen 2015, arXiv 1507.01239",
    speed_ups={16: 9.3, 32: 17.0},
    note="with a small loss of accuracy; interval, minibatch, network and devices could not be read",
)


def experiment(scale: float = 1.0) -> Experiment:
    """K-step averaging with natural gradient on 16 learners.

    Args:
        scale: size relative to the paper's, above 0 and at most 1; the clock stays.
    """
    task = PAPER.at(scale)
    compute = LognormalSeconds(PAPER.gradient_flops / REACHED_FLOPS, SIGMA)
    return Experiment(
        task,
        KAVG(K),
        Budget(epochs=20),
        NaturalGradientSGD(RATE),
        Exponential(0.1),
        preset("k20-infiniband").cluster(LEARNERS, compute, PAPER.message_bytes),
        scaling=Fixed(),  # as in the paper
        published=PUBLISHED if scale == 1 else None,
    )
