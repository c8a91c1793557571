"""AN4 (spelled names, addresses, dates; 0.7 h of 74 speakers) from its published cepstra, by the hybrid recipe.

    murmur train an4 --set task.corpus=FOLDER

FOLDER holds feats.npz, data/{train,test}, an4.dic and an4.ug.lm; dev is every eighth training speaker.

Word error rates of test, all settings from dev, one seed, 65 speakers in train: LDA+MLLT 11.90 %, SAT 7.76 %, network
5.56 % (95 %: 3.98 to 7.31). A run from nothing takes 0.25 hours on one core of an AMD EPYC beside other work.

The network takes the features of the speaker-adapted Gaussian system (fMLLR), so that test is decoded in two passes.
A last run on all 74 speakers adds task.loader=an4_all, fixed scales, and --weights last.
"""

from __future__ import annotations

from pathlib import Path

from murmur.engine.experiment import Experiment
from murmur.speech.features.augment import SpecAugment
from murmur.speech.features.chunks import Chunks
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.grow import TreeConfig
from murmur.speech.hmm.lda_mllt import LdaMlltConfig
from murmur.speech.hmm.sat import SatConfig
from murmur.speech.hmm.triphone import TriphoneConfig
from murmur.speech.models import Tdnn
from murmur.speech.recipes.hybrid import trained
from murmur.speech.tasks.graph_sources import Search
from murmur.speech.tasks.hybrid.config import Decoding, FrontEnd, HmmStages, NetworkInput
from murmur.speech.tasks.hybrid.task import HybridTask

TRIPHONE = EmConfig(gaussians=2000, passes=16, grow_passes=12, align_passes=(3, 5, 7, 10, 13), min_gaussian_frames=10.0)
ADAPTED = EmConfig(gaussians=3000, passes=35, grow_passes=25, align_passes=(10, 20, 30), min_gaussian_frames=10.0)
TREE = TreeConfig(leaves=400)


def experiment() -> Experiment:
    """Monophones, triphones of 400 states, LDA+MLLT, SAT, a TDNN on its features and alignments; unigram graph."""
    return trained(system(), epochs=10, evaluate_every_epochs=2.0)


def system() -> HybridTask:
    """The task, from which the other recipes for AN4 are made."""
    return HybridTask(
        corpus=Path("corpora/an4"),
        loader="an4",
        front=FrontEnd(input=NetworkInput(spectrum=False, fmllr=True)),
        hmm=HmmStages(
            monophone=EmConfig(),
            triphone=TriphoneConfig(TREE, TRIPHONE),
            lda=LdaMlltConfig(tree=TREE, em=ADAPTED),
            sat=SatConfig(tree=TREE, em=ADAPTED),
        ),
        network=Tdnn(hidden=320, dropout=0.2),
        chunks=Chunks(size=16),
        augment=SpecAugment(time_frames=12, bin_masks=0),
        precision="bfloat16",
        decoding=Decoding(
            gmm=Search("ug", scales=(0.03, 0.04, 0.05, 0.065, 0.08, 0.1), insertion_penalties=(0.0, 0.5, 1.0)),
            network=Search(
                "ug", scales=(0.05, 0.065, 0.08, 0.11, 0.14, 0.18, 0.24), insertion_penalties=(0.0, -0.5, 0.5)
            ),
        ),
    )
