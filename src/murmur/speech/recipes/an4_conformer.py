"""A Conformer on AN4 (spelled names, addresses, dates; 0.7 h) from its published MFCC, by CTC.

    murmur train an4_conformer --set task.corpus=FOLDER --learners 2

FOLDER, features, units and grammar are those of the recipe `an4_ctc`; the settings of training have not been tuned, and
its word error rates have not been measured.
"""

from __future__ import annotations

from dataclasses import replace

from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.speech.models import Conformer
from murmur.speech.recipes import an4_ctc
from murmur.speech.recipes.hybrid import trained
from murmur.strategies import KAVG


def experiment() -> Experiment:
    """Four blocks of 96 values at a third of the frame rate; AdamW with decoupled decay; K-step averaging."""
    task = replace(an4_ctc.system(), network=Conformer(hidden=96, dropout=0.2, stack=3))
    made = trained(task, epochs=36, evaluate_every_epochs=6.0, strategy=KAVG(K=4, moments="averaged"))
    return replace(made, optimizer=Adam(lr=1e-3, beta2=0.98, weight_decay=1e-2))
