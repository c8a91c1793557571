"""Pre-training of a sigmoid network for AN4.

murmur train an4_pretrain --set task.supervised.corpus=FOLDER --out runs/an4-stack
murmur train an4 --set task.corpus=FOLDER --set 'task.network=Dnn(512, 3)' --init runs/an4-stack
"""

from __future__ import annotations

from murmur.engine.experiment import Experiment
from murmur.speech.models import Dnn
from murmur.speech.recipes import an4
from murmur.speech.recipes.pretrain import stack_of


def experiment() -> Experiment:
    """Three machines of 512 units."""
    return stack_of(an4.system(), Dnn(hidden=512, layers=3))
