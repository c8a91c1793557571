"""Seconds of a gradient step of IBM's BLSTM on a GPU, for minibatches of 32 to 1,024 sequences.

    python benchmarks/small_minibatches.py

On 64 learners each one has 128 sequences where one learner has 256 (Zhang et al. 2019). The virtual clock takes the
seconds of a step as proportional to its sequences. This benchmark measures by how much a sequence of a small minibatch
takes longer. Network and sequences are the paper's size (`murmur_papers.recipes.swb2000`), inputs are random; a step is
a forward and a backward pass and an update of plain SGD, in float32, with and without TF32.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from measure import close, interleave, median_ratio
from murmur_papers.recipes.swb2000 import HOURS, REFERENCE, UNROLLED, task_of

KIND = "study"
SIZES = (32, 64, 128, 256, 512, 1024)
PRECISIONS = {"float32": "highest", "TF32": "high"}
STEPS = 5  # of a timing


def step_of(model: nn.Module, sequences: int, inputs: int, classes: int) -> Callable[[], None]:
    """A step on random sequences."""
    frames = torch.randn(sequences, UNROLLED, inputs, device="cuda")
    states = torch.randint(classes, (sequences, UNROLLED), device="cuda")
    weights = list(model.parameters())

    def step() -> None:
        outputs = model(frames)
        nn.functional.cross_entropy(outputs.flatten(0, 1), states.flatten()).backward()
        with torch.no_grad():
            torch._foreach_add_(weights, [w.grad for w in weights], alpha=-1e-4)
        for weight in weights:
            weight.grad = None

    return step


def timed(step: Callable[[], None]) -> float:
    """Seconds of a step."""
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begun.record()
    for _ in range(STEPS):
        step()
    ended.record()
    torch.cuda.synchronize()
    return begun.elapsed_time(ended) / 1000 / STEPS


def measured(precision: str, repeats: int) -> dict[str, Any]:
    """Median seconds of a step and of a sequence, by size; those of a sequence over those with `REFERENCE`."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "high"
    task = task_of(HOURS, REFERENCE)
    model = task.network.build(task.inputs, task.classes).cuda()
    steps = {str(size): step_of(model, size, task.inputs, task.classes) for size in SIZES}
    for step in steps.values():
        timed(step)
    found = interleave({size: lambda step=step: timed(step) for size, step in steps.items()}, repeats)
    ratios = {size: median_ratio(found, size, str(REFERENCE)) * REFERENCE / int(size) for size in found}
    return {"seconds": {size: statistics.median(each) for size, each in found.items()}, "of_a_sequence": ratios}


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a GPU that PyTorch can use")
    figures = {name: measured(precision, args.repeats) for name, precision in PRECISIONS.items()}
    close("small_minibatches", {"device": torch.cuda.get_device_name(), **figures}, [])


if __name__ == "__main__":
    main()
