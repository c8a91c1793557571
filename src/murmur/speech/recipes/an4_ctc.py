"""AN4 (spelled names, addresses, dates; 0.7 h) from its published MFCC, by the CTC recipe.

    murmur train an4_ctc --set task.corpus=FOLDER --learners 2                                (characters)
    murmur train an4_ctc --set task.corpus=FOLDER --set task.units=phone                      (or grapheme, word)
    murmur train an4_ctc --set task.corpus=FOLDER --set task.decoding.grammar=greedy          (no graph)

FOLDER holds feats.npz, data/{train,test}, an4.dic (for phones) and an4.ug.lm (for the graph). The training settings
were chosen with characters, on ten speakers held out of train.

Word error rates of test, one learner, one seed: 8.0 % (95 %: 5.0 to 11.7) with the graph, 11.8 % greedy. A run from
nothing takes four minutes of one core of an AMD EPYC with AVX-512.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from murmur.engine.experiment import Experiment
from murmur.speech.features.augment import SpecAugment
from murmur.speech.models import Blstm
from murmur.speech.recipes.hybrid import trained
from murmur.speech.tasks.ctc import CtcTask
from murmur.speech.tasks.graph_sources import CTC_SEARCH
from murmur.strategies import KAVG


def experiment() -> Experiment:
    """Characters, speaker CMVN, strong dropout and masking; K-step averaging; the corpus' unigrams in the graph."""
    return trained(
        system(),
        epochs=36,
        rate=3e-3,
        evaluate_every_epochs=6.0,
        strategy=KAVG(K=4, moments="averaged"),
        max_gradient_norm=0.02,
    )


def system() -> CtcTask:
    """The task, from which the recipe with a Conformer is made."""
    return CtcTask(
        corpus=Path("corpora/an4_mfcc"),
        units="char",
        lexicon=Path("an4.dic"),
        network=Blstm(hidden=128, layers=2, dropout=0.3, stack=3),
        cmvn="speaker",
        decoding=replace(CTC_SEARCH, grammar="an4.ug.lm"),
        augment=SpecAugment(tempo=0.15, time_masks=2, time_frames=15, bin_masks=1, bins=4),
    )
