"""An LSTM language model for read English, to rescore the results of the recipe `librispeech`.

    murmur train librispeech_lm --set task.corpus=FOLDER --set task.text=FILE --learners 2

FOLDER holds data/{dev,test}, whose transcripts are the held-out texts; FILE is prose, one sentence a line. Without
`task.text` it is the corpus' lm_text.
"""

from __future__ import annotations

from pathlib import Path

from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.engine.scaling import Auto
from murmur.engine.schedule import Cosine
from murmur.speech.language_model.word_lstm import WordLstm
from murmur.speech.tasks.language_model import LanguageModelTask
from murmur.strategies import ADPSGD


def experiment() -> Experiment:
    """The 20,000 most frequent words, one layer of 384 cells, tied embeddings; asynchronous pairwise averaging."""
    task = LanguageModelTask(
        corpus=Path("corpora/librispeech"), network=WordLstm(embedding=256, hidden=384), minibatch_size=64
    )
    return Experiment(
        task,
        ADPSGD(moments="averaged"),
        Budget(epochs=4),
        Adam(lr=2e-3),
        Cosine(warm=0.05),
        scaling=Auto("stays"),
        evaluate_every_epochs=0.5,
        max_gradient_norm=1.0,
    )
