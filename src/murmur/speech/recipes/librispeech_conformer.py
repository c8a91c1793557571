"""A Conformer in place of the TDNN of the recipe `librispeech`, for the 1.5 h or the 4.1 h of its part.

    murmur train librispeech_conformer --set task.corpus=FOLDER --threads 1

FOLDER and Gaussian systems are those of the recipe `librispeech`; the settings of training have not been tuned, and its
word error rates have not been measured.
"""

from __future__ import annotations

from dataclasses import replace

from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import Adam
from murmur.speech.features.chunks import Chunks
from murmur.speech.models import Conformer
from murmur.speech.recipes import librispeech
from murmur.speech.recipes.hybrid import trained


def experiment() -> Experiment:
    """Four blocks of 144 values whose attention reads 30 frames on either side, on chunks with as much context."""
    chunks = Chunks(frames=150, left_frames=30, right_frames=30, size=12)
    task = replace(librispeech.system(), network=Conformer(reach=30), chunks=chunks)
    return replace(trained(task, epochs=7), optimizer=Adam(lr=1e-3, beta2=0.98, weight_decay=1e-2))
