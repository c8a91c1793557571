"""Read English (part of LibriSpeech, 1.5 h of 20 speakers) with a vocabulary of 20,000 words.

    murmur train librispeech --set task.corpus=FOLDER --threads 1

FOLDER holds data/{train,dev,test} and lm/{bg.arpa.gz,tg.arpa.gz,lexicon.txt}. If it has a lexicon.txt too, training
takes its pronunciations, else those of lm/lexicon.txt. With
`--set task.vocabulary.text=TEXT` the vocabulary is lm/lexicon.txt and all words of a text, with guessed pronunciations,
and the bigrams and trigrams are those of the text.

Word error rates of test, all settings from dev, one seed, with the bigrams: monophones 56.8 %, triphones 49.1 %,
LDA+MLLT 44.1 %, SAT 36.3 %; network with the trigrams 28.5 % (95 %: 25.8 to 31.4). A run from nothing takes about two
hours and a half on one core of an AMD EPYC, of which an hour is the network's training.

On 4.1 h (`librispeech_mini_m`): SAT 33.5 %, and 30.8 % (27.8 to 34.0) with `--set task.hmm.sat.tree.leaves=2000
--set task.hmm.sat.em.gaussians=12000`. The network on alignments of the smaller one, with
`--set "task.decoding.network.scales=(0.05, 0.06, 0.07, 0.08, 0.1)"` and
`--set "task.decoding.network.insertion_penalties=(0.0, 0.5, 1.0)"`: 24.8 % (22.1 to 27.5), after three minutes of
training on a GPU. Without costs of words, which were added after a first look at test: 25.0 % (22.2 to 27.9).

On 1.5 h with the vocabulary and the trigrams of 46,000 words of other books (`task.vocabulary.text`), and triphones of
the sizes of SAT: 26.9 % (24.4 to 29.5); lists of 100 from a beam of 10, rescored by `librispeech_lm` (weight 0.9 from
dev): 25.6 % (23.0 to 28.4).

The network takes spectrum and adapted features (fMLLR) of all speeds, so that test is decoded in two passes.
"""

from __future__ import annotations

from pathlib import Path

from murmur.engine.experiment import Experiment
from murmur.speech.features.augment import SpecAugment
from murmur.speech.hmm.em_loop import EmConfig
from murmur.speech.hmm.grow import TreeConfig
from murmur.speech.hmm.lda_mllt import LdaMlltConfig
from murmur.speech.hmm.sat import SatConfig
from murmur.speech.models import Tdnn
from murmur.speech.recipes.hybrid import trained
from murmur.speech.tasks.graph_sources import Search
from murmur.speech.tasks.hybrid.config import Decoding, FrontEnd, HmmStages, NetworkInput
from murmur.speech.tasks.hybrid.task import HybridTask

ADAPTED = EmConfig(gaussians=6000, passes=35, grow_passes=25, align_passes=(10, 20, 30), min_gaussian_frames=15.0)
TREE = TreeConfig(leaves=900)


def experiment() -> Experiment:
    """Monophones to SAT; a TDNN in bfloat16 on spectrum and adapted features of three speeds; bigrams, trigrams."""
    return trained(system(), epochs=7)


def system() -> HybridTask:
    """The task, from which the recipe with a Conformer is made."""
    return HybridTask(
        corpus=Path("corpora/librispeech"),
        loader="librispeech",
        front=FrontEnd(speeds=(0.9, 1.0, 1.1), input=NetworkInput(fmllr=True)),
        hmm=HmmStages(lda=LdaMlltConfig(tree=TREE, em=ADAPTED), sat=SatConfig(tree=TREE, em=ADAPTED)),
        network=Tdnn(hidden=320),
        augment=SpecAugment(warp=0.08, time_masks=1, time_frames=15, bin_masks=1, bins=6),
        precision="bfloat16",
        decoding=Decoding(
            gmm=Search("bg", scales=(0.04, 0.05, 0.065, 0.08, 0.1)),
            network=Search("tg", scales=(0.08, 0.1, 0.12, 0.14, 0.165)),
            tune_every=3,
            silence_probability=0.5,
        ),
    )
