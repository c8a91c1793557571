"""An LSTM language model of any text, or of the text or transcripts of a corpus."""

from __future__ import annotations

from pathlib import Path

from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.engine.scaling import Auto
from murmur.engine.schedule import Cosine
from murmur.speech.language_model.word_lstm import WordLstm
from murmur.strategies import KAVG
from murmur.tasks.language_model.task import LanguageModelTask


def experiment() -> Experiment:
    """One small layer with tied embeddings; K-step averaging."""
    return Experiment(
        LanguageModelTask(corpus=Path("corpora/mine"), network=WordLstm(embedding=128, hidden=128)),
        KAVG(K=4, moments="averaged"),
        Budget(epochs=8),
        Adam(lr=2e-3),
        Cosine(warm=0.1),
        scaling=Auto("stays"),
        evaluate_every_epochs=1.0,
        max_gradient_norm=1.0,
    )
