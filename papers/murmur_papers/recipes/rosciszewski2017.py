"""Rosciszewski and Kaliski, HPCS 2017: frequent parameter averaging of an LSTM on 100 hours of Polish.

    murmur train rosciszewski2017 --dry-run --no-steps
    murmur plan rosciszewski2017
    murmur simulate rosciszewski2017 --set scale=0.02 --set budget.epochs=1

Known: 4 layers of 800 cells, 100 h, 2 workstations of 4 devices, an average every 600,000 frames of a learner, 54.9 %
less time than Kaldi's jobs; from the code: CTC, learners at full number half-way, momentum and Fisher estimates that
restart at every average. From Kaldi's scripts of 2016, which the paper may have changed: rates, 8 epochs, 1 to 8 jobs,
momentum 0.5, chunks of 50 frames after 30 of context, 100 in a minibatch, limits of a step, combination of 20 models.
Assumed: 40 inputs, 4,000 labels, the devices and their speed, no shrink.
"""

from __future__ import annotations

from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment, Published
from murmur.engine.optim.optimizer import NaturalGradientSGD
from murmur.engine.scaling import Fixed
from murmur.engine.schedule import Exponential
from murmur.speech.features.chunks import Chunks
from murmur.speech.models import Lstm
from murmur.strategies import ParameterAveraging
from murmur.strategies.parameter_averaging import Jobs, MaxChange, WeightedMean
from murmur.worlds.virtual.cluster import LognormalSeconds
from murmur.worlds.virtual.presets import preset
from murmur_papers.tasks.declared import Ctc, DeclaredTask

LEARNERS = 8
FULL_WIDTH = (1 + LEARNERS) / (1 + 3 * LEARNERS)  # part of the budget in the first half of the iterations
FRAMES = 600_000  # of a learner between two averages
PAPER = DeclaredTask(
    hours=100.0,
    inputs=40,  # assumed
    classes=4000,  # assumed
    network=Lstm(hidden=800, layers=4),
    criterion=Ctc(),
    chunks=Chunks(frames=50, left_frames=30, right_frames=0, size=100),
)
RATE = 3e-4 * PAPER.frames  # Kaldi's rate is for gradients summed over a minibatch, this one for means
FRAMES_PER_SECOND = 7.7e3  # assumed: of one device at the paper's size, of a range of 4,000-15,000
SIGMA = 0.05  # assumed: spread of step times, of a range of 0.02-0.1
PUBLISHED = Published(
    "Rosciszewski & Kaliski, HPCS 2017",
    note="54.9 % less time than Kaldi with a job for every learner and average (predicted by benchmarks/published.py);"
    " hours, and the speed-up over one device, are not in what could be read",
)


def experiment(scale: float = 1.0) -> Experiment:
    """ParameterAveraging with Kaldi's rules on 8 learners.

    Args:
        scale: size relative to the paper's, above 0 and at most 1; the clock stays, frames between averages follow
            the hours.
    """
    task = PAPER.at(scale)
    compute = LognormalSeconds(PAPER.frames / FRAMES_PER_SECOND, SIGMA)
    return Experiment(
        task,
        ParameterAveraging(
            FRAMES * scale**2, Jobs(1, LEARNERS, FULL_WIDTH), MaxChange(output=1.5), combine=WeightedMean()
        ),
        Budget(epochs=8),
        NaturalGradientSGD(RATE, momentum=0.5, keep_rate=True),
        Exponential(0.1),
        preset("workstations-1g").cluster(LEARNERS, compute, PAPER.message_bytes),
        scaling=Fixed(),  # as in the paper
        published=PUBLISHED if scale == 1 else None,
    )
