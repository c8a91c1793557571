"""Stages of the hybrid recipes: networks are trained on the best alignments, those of speaker-adaptive training."""

from __future__ import annotations

import pkgutil
from dataclasses import is_dataclass

import pytest

pytest.importorskip("lhotse", reason="the speech libraries are not installed (pip install murmur-asr[speech])")

from murmur.run.configuration import resolved
from murmur.speech import recipes
from murmur.speech.tasks.hybrid.task import HybridTask

# One speaker, a demo of minutes, and words that are too few for phones in context.
MONOPHONES = {"yesno", "demo", "digits_demo", "digits_dnn", "fsdd"}
NAMES = [module.name for module in pkgutil.iter_modules(recipes.__path__)]


def hybrid_tasks() -> dict[str, HybridTask]:
    found = {}
    for name in NAMES:
        if name == "demo":
            continue
        task = resolved(name).task
        task = getattr(task, "hybrid", task)
        if is_dataclass(task) and isinstance(task, HybridTask):
            found[name] = task
    return found


def test_networks_of_every_recipe_learn_from_adapted_alignments() -> None:
    tasks = hybrid_tasks()
    assert {"an4", "librispeech", "digits_hybrid", "own", "hybrid"} <= tasks.keys()
    others = {name for name, task in tasks.items() if task.hmm.names != ["monophone", "triphone", "lda", "sat"]}
    assert others <= MONOPHONES
    assert all(tasks[name].hmm.names == ["monophone"] for name in others)


def test_silence_does_not_shape_projections() -> None:
    for task in hybrid_tasks().values():
        assert task.hmm.lda is None or task.hmm.lda.silence_weight == 0.0


def test_a_recording_of_fsdd_is_one_word() -> None:
    decoding = hybrid_tasks()["fsdd"].decoding
    assert decoding.gmm.grammar == decoding.network.grammar == "one word"
