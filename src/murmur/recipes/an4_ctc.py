"""AN4 (spelled names, addresses, dates; 0.7 h) from its published MFCC, by the CTC recipe on characters.

    murmur train an4_ctc --set task.corpus=FOLDER --learners 2

FOLDER holds feats.npz and data/{train,test}. Settings were chosen on ten speakers carved out of train.
"""

from __future__ import annotations

from pathlib import Path

from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optimizer import Adam
from murmur.engine.schedule import Cosine
from murmur.recipes.ctc import CtcTask
from murmur.speech.augment import SpecAugment
from murmur.strategies import KAVG


def experiment() -> Experiment:
    """Characters, speaker CMVN, strong dropout and masking; K-step averaging."""
    task = CtcTask(
        corpus=Path("corpora/an4_mfcc"),
        units="char",
        hidden=128,
        dropout=0.3,
        cmvn="speaker",
        augment=SpecAugment(tempo=0.15, time_masks=2, time_frames=15, bin_masks=1, bins=4),
    )
    return Experiment(
        task,
        KAVG(K=4),
        Budget(epochs=36),
        Adam(lr=3e-3),
        Cosine(warm=0.1),
        evaluate_every_epochs=6.0,
        max_gradient_norm=5.0,
    )
