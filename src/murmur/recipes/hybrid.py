"""Any folder of data sets by the hybrid recipe; without a folder, digits spoken by espeak-ng."""

from __future__ import annotations

from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.engine.scaling import Auto
from murmur.engine.schedule import Cosine
from murmur.speech.hmm.lda_mllt import LdaMlltConfig
from murmur.speech.hmm.sat import SatConfig
from murmur.strategies import SyncSGD
from murmur.tasks.hybrid.config import HmmStages
from murmur.tasks.hybrid.task import HybridTask


def experiment() -> Experiment:
    """A TDNN on the states and alignments of speaker-adapted triphones of any folder, or of the synthetic digits."""
    return Experiment(
        HybridTask(hmm=HmmStages(lda=LdaMlltConfig(), sat=SatConfig())),
        SyncSGD(),
        Budget(epochs=8),
        Adam(lr=2e-3),
        Cosine(warm=0.1),
        scaling=Auto("stays"),
        evaluate_every_epochs=2.0,
        max_gradient_norm=5.0,
    )
