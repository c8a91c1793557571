"""The digits of the demo by a sigmoid network, from random weights or from a pre-trained stack.

murmur train digits_dnn --out runs/dnn
murmur train pretrain --out runs/stack && murmur train digits_dnn --init runs/stack --out runs/fine-tuned
"""

from __future__ import annotations

from dataclasses import replace

from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.speech.recipes import digits_demo
from murmur.speech.recipes.pretrain import SMALL
from murmur.speech.tasks.hybrid.task import HybridTask


def experiment() -> Experiment:
    """Plain SGD with momentum, the setting that pre-training was designed for."""
    demo = digits_demo.experiment()
    assert isinstance(demo.task, HybridTask)
    return replace(demo, task=replace(demo.task, network=SMALL), optimizer=SGD(0.1, momentum=0.9))
