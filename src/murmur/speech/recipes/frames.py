"""Frames and classes of a prepared corpus, by a network of the user's choice."""

from __future__ import annotations

from murmur.engine.experiment import Experiment
from murmur.speech.recipes.hybrid import trained
from murmur.speech.tasks.frames import FramesTask
from murmur.strategies import KAVG


def experiment() -> Experiment:
    """A TDNN, averaged every eight steps."""
    return trained(FramesTask(), epochs=8, strategy=KAVG(K=8))
