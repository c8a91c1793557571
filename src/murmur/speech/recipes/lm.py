"""An LSTM language model of any text, or of the text or transcripts of a corpus."""

from __future__ import annotations

from pathlib import Path

from murmur.engine.experiment import Experiment
from murmur.speech.language_model.word_lstm import WordLstm
from murmur.speech.recipes.hybrid import trained
from murmur.speech.tasks.language_model import LanguageModelTask
from murmur.strategies import KAVG


def experiment() -> Experiment:
    """One small layer with tied embeddings; K-step averaging."""
    return trained(
        LanguageModelTask(corpus=Path("corpora/mine"), network=WordLstm(embedding=128, hidden=128)),
        epochs=8,
        strategy=KAVG(K=4, moments="averaged"),
        max_gradient_norm=1.0,
    )
