"""Pre-training of a sigmoid network on digits spoken by espeak-ng: a stack of restricted Boltzmann machines."""

from __future__ import annotations

from dataclasses import replace

from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Auto
from murmur.speech.models import Dnn
from murmur.speech.recipes import digits_demo
from murmur.speech.tasks.hybrid.pretrain import PretrainTask
from murmur.speech.tasks.hybrid.task import HybridTask
from murmur.strategies import SyncSGD

SMALL = Dnn(hidden=256, layers=3, context=5)


def experiment() -> Experiment:
    """Three machines of 256 units on the demo's digits, two passes each."""
    supervised = digits_demo.experiment().task
    assert isinstance(supervised, HybridTask)
    return stack_of(supervised, SMALL)


def stack_of(supervised: HybridTask, network: Dnn) -> Experiment:
    """Pre-training of a network for a task, two passes per layer."""
    task = PretrainTask(replace(supervised, network=network), epochs_per_layer=2.0)
    optimizer = SGD(0.04, momentum=0.9, weight_decay=2e-4)
    return Experiment(task, SyncSGD(), Budget(epochs=2.0 * network.layers), optimizer, scaling=Auto("stays"))
