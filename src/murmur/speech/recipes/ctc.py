"""Digits spoken by espeak-ng, or any folder of data sets, by CTC.

    murmur train ctc --learners 2
    murmur train ctc --set task.corpus=FOLDER

Word error rate of test (unseen voices), one learner, one seed: 2.7 % (95 %: 1.2 to 4.5). A run from nothing, synthesis
included, takes one minute of one core of an AMD EPYC with AVX-512.
"""

from __future__ import annotations

from murmur.engine.experiment import Experiment
from murmur.speech.recipes.hybrid import trained
from murmur.speech.tasks.ctc import CtcTask
from murmur.strategies import KAVG


def experiment() -> Experiment:
    """The digits with K-step averaging."""
    return trained(
        CtcTask(),
        epochs=14,
        rate=3e-3,
        evaluate_every_epochs=2.0,
        strategy=KAVG(K=4, moments="averaged"),
        max_gradient_norm=0.02,
    )
