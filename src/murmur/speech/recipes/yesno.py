"""Yes and no in Hebrew (60 recordings of one speaker, OpenSLR 1): the smallest set for a complete system.

    murmur train yesno --set task.corpus=FOLDER

FOLDER holds data/{train,test} and lexicon.txt.

Word errors of test, one seed: monophones none in 232 words, network one (0.43 %, 95 %: 0 to 1.29). A run from nothing
takes half a minute on one core of an AMD EPYC.
"""

from __future__ import annotations

from pathlib import Path

from murmur.engine.experiment import Experiment
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.chunks import Chunks
from murmur.speech.hmm.monophone import MonophoneConfig
from murmur.speech.models import Tdnn
from murmur.speech.recipes.hybrid import trained
from murmur.speech.tasks.graph_sources import Search
from murmur.speech.tasks.hybrid.config import Decoding, FrontEnd, HmmStages
from murmur.speech.tasks.hybrid.task import HybridTask

MONOPHONE = MonophoneConfig(gaussians=60, flat_starts=6)
# A change from digital silence to room noise looks like a word to a confident model: keep the scales small.
GMM, NETWORK = Search(scales=(0.005, 0.01, 0.02)), Search(scales=(0.01, 0.014, 0.02, 0.028, 0.04))


def experiment() -> Experiment:
    """Monophones of 60 Gaussians, and a small TDNN on their 11 states."""
    task = HybridTask(
        corpus=Path("corpora/yesno"),
        loader="yesno",
        front=FrontEnd(cmvn="utterance", speeds=(0.9, 1.0, 1.1)),
        hmm=HmmStages(silence_probability=0.9, monophone=MONOPHONE, triphone=None),
        network=Tdnn(hidden=64),
        chunks=Chunks(size=8),
        augment=SpecAugment(bins=4),
        decoding=Decoding(gmm=GMM, network=NETWORK),
    )
    return trained(task, epochs=6, rate=3e-3, evaluate_every_epochs=2.0)
