"""Connected digits spoken by espeak-ng, small enough for a demo: monophone states, a small TDNN, minutes of training.

    murmur train digits_demo --learners 2

`murmur demo` trains it with one learner and with two. The corpus is synthesised on first use; nothing is downloaded.
"""

from __future__ import annotations

from murmur.engine.experiment import Experiment
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.chunks import Chunks
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.models import Tdnn
from murmur.speech.recipes.hybrid import trained
from murmur.speech.tasks.hybrid.config import Decoding, FrontEnd, HmmStages
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.strategies import KAVG

MONOPHONE = EmConfig(gaussians=600, passes=20, grow_passes=15, align_passes=(*range(2, 11), 12, 14, 16, 18))


def experiment() -> Experiment:
    """Monophones and a TDNN on masked features, averaged every second step."""
    task = HybridTask(
        front=FrontEnd(cmvn="utterance"),
        hmm=HmmStages(monophone=MONOPHONE, triphone=None),
        network=Tdnn(160, ((-2, -1, 0, 1, 2), (-3, 0, 3), (-6, 0, 6), (-9, 0, 9)), dropout=0.05),
        chunks=Chunks(frames=200, left_frames=20, right_frames=20, size=8),
        augment=SpecAugment(warp=0.1, time_frames=15, bins=6),
        decoding=Decoding(scored="none"),
    )
    return trained(task, epochs=8, rate=3e-3, strategy=KAVG(K=2))
