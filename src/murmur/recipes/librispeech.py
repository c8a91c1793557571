"""Read English (part of LibriSpeech, 1.5 h of 20 speakers) with a vocabulary of 20,000 words.

    murmur train librispeech --set task.corpus=FOLDER --threads 1

FOLDER holds data/{train,dev,test}, lexicon.txt, and lm/{bg.arpa.gz,tg.arpa.gz,lexicon.txt}. With
`--set task.vocabulary.text=TEXT` the vocabulary is lm/lexicon.txt and all words of a text, with guessed pronunciations,
and the bigrams and trigrams are those of the text.
"""

from __future__ import annotations

from pathlib import Path

from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.engine.scaling import Auto
from murmur.engine.schedule import Cosine
from murmur.speech.features.augment import SpecAugment
from murmur.speech.models import Tdnn
from murmur.strategies import SyncSGD
from murmur.tasks.hybrid.config import Decoding, FrontEnd, Search
from murmur.tasks.hybrid.task import HybridTask


def experiment() -> Experiment:
    """Monophones, triphones; a TDNN in bfloat16 on three speeds, masked; bigram and trigram graphs."""
    task = HybridTask(
        corpus=Path("corpora/librispeech"),
        loader="librispeech",
        front=FrontEnd(speeds=(0.9, 1.0, 1.1)),
        network=Tdnn(hidden=320),
        augment=SpecAugment(warp=0.08, time_masks=1, time_frames=15, bin_masks=1, bins=6),
        precision="bfloat16",
        decoding=Decoding(
            gmm=Search("bg", scales=(0.055, 0.065, 0.08, 0.1, 0.12)),
            network=Search("tg", scales=(0.1, 0.12, 0.14, 0.165)),
            tune_every=3,
            silence_probability=0.5,
        ),
    )
    return Experiment(
        task,
        SyncSGD(),
        Budget(epochs=7),
        Adam(lr=2e-3),
        Cosine(warm=0.1),
        scaling=Auto("stays"),
        evaluate_every_epochs=1.0,
        max_gradient_norm=5.0,
    )
