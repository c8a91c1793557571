"""Free Spoken Digit Dataset: isolated digits of six speakers, 8 kHz.

    murmur train fsdd --set task.corpus=FOLDER                                      (an unseen speaker in dev and test)
    murmur train fsdd --set task.corpus=FOLDER --set task.loader=fsdd_official      (all speakers on both sides)

FOLDER holds data/<split> and lexicon.txt. Settings are chosen by leaving one of the five speakers of train and dev out
at a time; the last run trains on all five:

    python benchmarks/folds.py fsdd --set task.corpus=FOLDER --out runs/folds --candidate 'NAME: SETTING SETTING'
    murmur train fsdd --set task.corpus=FOLDER --set task.loader=fsdd_all --weights last

Word error rates of the network: 10.6 % on speakers left out in turn (500 digits of each of five), 0.80 % on the test
speaker after training on all five, 0.00 % on the official split of 300 digits. A run takes about three minutes of one
core of an AMD EPYC.
"""

from __future__ import annotations

from pathlib import Path

from murmur.engine.experiment import Experiment
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.chunks import Chunks
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.models import Tdnn
from murmur.speech.recipes.hybrid import trained
from murmur.speech.tasks.graph_sources import ONE_WORD, Search
from murmur.speech.tasks.hybrid.config import Decoding, FrontEnd, HmmStages
from murmur.speech.tasks.hybrid.task import HybridTask

MONOPHONE = EmConfig(gaussians=600, passes=20, grow_passes=15, align_passes=(*range(2, 11), 12, 14, 16, 18))


def experiment() -> Experiment:
    """Monophones, and a TDNN on masked features; each recording is one digit."""
    task = HybridTask(
        corpus=Path("corpora/fsdd"),
        loader="fsdd_unseen",
        front=FrontEnd(bins=20),
        hmm=HmmStages(silence_probability=0.2, monophone=MONOPHONE, triphone=None),
        network=Tdnn(hidden=192, dropout=0.3),
        chunks=Chunks(size=24),
        augment=SpecAugment(time_frames=8, bin_masks=1, bins=3),
        precision="bfloat16",
        decoding=Decoding(
            gmm=Search(ONE_WORD), network=Search(ONE_WORD, scales=(0.02, 0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.3))
        ),
    )
    return trained(task, epochs=12, rate=3e-3)
