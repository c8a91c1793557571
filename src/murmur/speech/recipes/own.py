"""The user's recordings, half an hour or more: pronunciations, a language model of the transcripts, a hybrid system.

    murmur prepare own --from recordings --out corpora/mine
    murmur lexicon corpora/mine/data/train --guess espeak --out corpora/mine
    murmur lm train corpora/mine/data/train --out corpora/mine/lm.arpa.gz
    murmur train own --set task.corpus=corpora/mine

The set holds data/{train,test}, perhaps data/dev, and the lexicon.txt and lm.arpa.gz that the second and the third
command make. The recipe `ctc` needs neither: murmur train ctc --set task.corpus=corpora/mine --set task.units=char

Six minutes of synthetic commands of 13 words, twelve voices: no error in the 71 words of the voice held out, after a
minute of one core of an AMD EPYC (docs/tutorial.md).
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
from murmur.speech.tasks.hybrid.config import Decoding, FrontEnd, HmmStages
from murmur.speech.tasks.hybrid.task import HybridTask

MONOPHONE = EmConfig(gaussians=600, passes=20, grow_passes=15, align_passes=(*range(2, 11), 12, 14, 16, 18))
TRIPHONE = EmConfig(gaussians=1500, passes=14, grow_passes=10, align_passes=(4, 7, 10), min_gaussian_frames=15.0)
ADAPTED = EmConfig(gaussians=2000, passes=25, grow_passes=18, align_passes=(7, 14, 20), min_gaussian_frames=15.0)
TREE = TreeConfig(leaves=300)
SCALES = (0.03, 0.05, 0.07, 0.1, 0.14, 0.2)


def experiment() -> Experiment:
    """Monophones, triphones of 300 states, LDA+MLLT, SAT; a small TDNN on three speeds; one language model."""
    task = HybridTask(
        corpus=Path("corpora/mine"),
        loader="own",
        front=FrontEnd(speeds=(0.9, 1.0, 1.1)),
        hmm=HmmStages(
            monophone=MONOPHONE,
            triphone=TriphoneConfig(TREE, TRIPHONE),
            lda=LdaMlltConfig(tree=TREE, em=ADAPTED),
            sat=SatConfig(tree=TREE, em=ADAPTED),
        ),
        network=Tdnn(hidden=160, dropout=0.1),
        chunks=Chunks(size=16),
        augment=SpecAugment(warp=0.08, time_masks=1, time_frames=15, bin_masks=1, bins=6),
        decoding=Decoding(
            gmm=Search("lm", scales=SCALES),
            network=Search("lm", scales=(*SCALES, 0.3)),
            silence_probability=0.5,
            scored="last",
        ),
    )
    return trained(task, epochs=4)
