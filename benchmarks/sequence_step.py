"""Processor time of a step of lattice-free training against cross-entropy, same network and frames, in turn.

    python benchmarks/sequence_step.py --corpus FOLDER --cache CACHE        (FOLDER as for the recipe an4)

A step is loss and gradient on one minibatch that is ready; the bar is 2 for MMI. Times are of the processor, the least
of all repetitions.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from murmur.engine.task import Loss
from murmur.speech.recipes import an4_mmi
from murmur.speech.tasks.hybrid.config import CrossEntropy, Mmi, Smbr
from murmur.speech.tasks.hybrid.sequence import SequenceLearning
from murmur.speech.tasks.hybrid.task import HybridTask

KIND = "study"
BAR = 2.0


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = an4_mmi.experiment().task
    assert isinstance(recipe, HybridTask)
    criteria = {"cross-entropy": CrossEntropy(), "mmi": Mmi(), "smbr": Smbr()}
    own = replace(recipe, corpus=options.corpus, cache=options.cache)
    tasks = {name: replace(own, criterion=criterion) for name, criterion in criteria.items()}
    mmi = tasks["mmi"].learning
    assert isinstance(mmi, SequenceLearning)
    graph, model = mmi.data.denominator.graph, tasks["mmi"].model()
    batches = {name: task.minibatch(0) for name, task in tasks.items()}
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(options.repetitions + 1):
        for name, task in tasks.items():
            seconds[name].append(_step(model, lambda task=task, name=name: task.loss(model, batches[name])))
    least = {name: min(found[1:]) for name, found in seconds.items()}
    ratios = {name: least[name] / least["cross-entropy"] for name in ("mmi", "smbr")}
    figures = {
        "states": graph.states,
        "arcs": graph.arcs,
        "frames": batches["mmi"].chunks.frames,
        **{f"{name} seconds": round(value, 4) for name, value in least.items()},
        **{f"{name} over cross-entropy": round(value, 3) for name, value in ratios.items()},
    }
    bar = {
        "what": "processor time of an MMI step over a cross-entropy step",
        "value": round(ratios["mmi"], 3),
        "bar": BAR,
        "holds": ratios["mmi"] <= BAR,
    }
    print(json.dumps({"benchmark": "sequence_step", "figures": figures, "bars": [bar]}))


def _step(model: torch.nn.Module, loss: Callable[[], Loss]) -> float:
    start = time.process_time()
    found = loss()
    (found.total / found.samples).backward()
    taken = time.process_time() - start
    model.zero_grad()
    return taken


if __name__ == "__main__":
    main()
