"""Any folder of data sets by the hybrid recipe; without a folder, digits spoken by espeak-ng."""

from __future__ import annotations

from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.engine.scaling import Auto
from murmur.engine.schedule import Cosine
from murmur.engine.task import Task
from murmur.speech.hmm.lda_mllt import LdaMlltConfig
from murmur.speech.hmm.sat import SatConfig
from murmur.speech.tasks.hybrid.config import HmmStages
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.strategies import SyncSGD


def experiment() -> Experiment:
    """A TDNN on the states and alignments of speaker-adapted triphones of any folder, or of the synthetic digits."""
    return trained(HybridTask(hmm=HmmStages(lda=LdaMlltConfig(), sat=SatConfig())), epochs=8, evaluate_every_epochs=2.0)


def trained(
    task: Task,
    epochs: float,
    rate: float = 2e-3,
    evaluate_every_epochs: float = 1.0,
    strategy: Strategy = SyncSGD(),  # noqa: B008 - a frozen value
    max_gradient_norm: float = 5.0,
) -> Experiment:
    """A task trained by Adam with a cosine schedule, as all recipes for speech are."""
    return Experiment(
        task,
        strategy,
        Budget(epochs=epochs),
        Adam(lr=rate),
        Cosine(warm=0.1),
        scaling=Auto("stays"),
        evaluate_every_epochs=evaluate_every_epochs,
        max_gradient_norm=max_gradient_norm,
    )
