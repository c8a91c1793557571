"""Digits spoken by espeak-ng, or any folder of data sets, by CTC."""

from __future__ import annotations

from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.engine.scaling import Auto
from murmur.engine.schedule import Cosine
from murmur.strategies import KAVG
from murmur.tasks.ctc.task import CtcTask


def experiment() -> Experiment:
    """The digits with K-step averaging. Expected: a word error rate of 3 to 4 % on unseen voices."""
    return Experiment(
        CtcTask(),
        KAVG(K=4, moments="averaged"),
        Budget(epochs=14),
        Adam(lr=3e-3),
        Cosine(warm=0.1),
        scaling=Auto("stays"),
        evaluate_every_epochs=2.0,
        max_gradient_norm=0.02,
    )
