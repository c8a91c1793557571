"""Sequence training (lattice-free MMI) of the network that the recipe `an4` has trained.

    murmur train an4 --set task.corpus=FOLDER --out runs/ce
    murmur train an4_mmi --set task.hybrid.corpus=FOLDER --init runs/ce --out runs/mmi

Word error rate of test, mean of three seeds: 5.69 %, where the first run has 5.78 % (on dev 5.91 %, where the first run
has 6.15 %). A run takes about two minutes on one core of an AMD EPYC.

Settings of the first run that change states or network must be given here too, as task.hybrid.NAME.
"""

from __future__ import annotations

from dataclasses import replace

from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.recipes import an4
from murmur.tasks.hybrid.config import Chunks
from murmur.tasks.hybrid.task import HybridTask
from murmur.tasks.sequence.task import SequenceTask


def experiment() -> Experiment:
    """Two epochs on chunks of 1.5 seconds, at a tenth of the rate of cross-entropy training."""
    first = an4.experiment()
    assert isinstance(first.task, HybridTask)
    task = SequenceTask(replace(first.task, chunks=Chunks(frames=150, size=12)))
    return replace(first, task=task, budget=Budget(epochs=2), optimizer=Adam(lr=2e-4), evaluate_every_epochs=0.5)
