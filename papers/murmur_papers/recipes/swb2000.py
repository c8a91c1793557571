"""IBM's BLSTM for Switchboard, and the speed of one device with it: parts of three experiments.

6 bidirectional layers of 512 cells a direction, a linear bottleneck of 256, 32,000 states, 260 inputs (40 FMLLR, 100
i-vector, 120 log-mel with deltas), sequences of 21 frames: 43,154,944 weights (recalled with high confidence; 164.6 MiB
fit the papers' 165 MB).
"""

from __future__ import annotations

from murmur.speech.features.chunks import Chunks
from murmur.speech.models import Blstm
from murmur.worlds.virtual.cluster import LognormalSeconds
from murmur_papers.tasks.declared import FRAMES_PER_HOUR, DeclaredTask

HOURS = 1975.0  # SWB2000: Switchboard, Fisher, CallHome (recalled, high)
EPOCHS = 16  # recalled, medium
REFERENCE, RATE = 256, 0.1  # sequences of a minibatch and their rate, from which larger ones warm up (recalled, medium)
UNROLLED = 21  # frames of a sequence (recalled, high)
ONE_V100_HOURS = 192.0  # of one device (talk of 2019, second-hand); that it is a V100 is assumed
SEQUENCE_SECONDS = ONE_V100_HOURS * 3600 / (EPOCHS * HOURS * FRAMES_PER_HOUR / UNROLLED)
P100_OVER_V100 = 10.6 / 15.7  # peak speeds in single precision (maker)


def task_of(hours: float, sequences: int) -> DeclaredTask:
    """The network on so many hours, with so many sequences in a minibatch of one learner."""
    return DeclaredTask(
        hours=hours,
        inputs=260,
        classes=32_000,
        network=Blstm(hidden=512, layers=6, bottleneck=256),
        chunks=Chunks(frames=UNROLLED, left_frames=0, right_frames=0, size=sequences),
    )


def compute_of(task: DeclaredTask, sigma: float, speed: float = 1.0) -> LognormalSeconds:
    """Compute times of a gradient, with 192 h for 16 epochs of SWB2000 on one V100; `speed`: relative to a V100."""
    return LognormalSeconds(SEQUENCE_SECONDS * task.chunks.size / speed, sigma)
