"""Cost of natural gradient: CPU seconds of a step against plain SGD, LSTM 3 x 256, one thread, in turn.

Both sides take four steps at a time (one of which updates the Fisher estimates), alternating, on the same minibatches
of 64 chunks of 40 frames. Plain SGD runs torch's fused LSTM.

    python benchmarks/natural_gradient.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

import torch

from measure import bar, close, interleave, median_ratio
from murmur.engine.optim.optimizer import SGD, NaturalGradientSGD, OptimizerFactory
from overhead import Chunks

KIND = "bar"
STEPS, REPEATS = 4, 15


def side(task: Chunks, factory: OptimizerFactory, precision: torch.dtype) -> Callable[[], float]:
    """A function that takes four steps of training and returns CPU seconds per step."""
    torch.manual_seed(0)
    model = task.model()
    optimizer = factory(model)
    natural = getattr(optimizer, "preconditioning", None)
    taken = iter(range(1_000_000))

    def run() -> float:
        began = time.process_time()
        for _ in range(STEPS):
            optimizer.zero_grad()
            with natural or nullcontext():
                with torch.autocast("cpu", precision, enabled=precision == torch.bfloat16):
                    loss = task.loss(model, task.minibatch(next(taken)))
                if natural is not None:
                    natural.samples = loss.samples
                (loss.total / loss.samples).backward()
            optimizer.step()
        return (time.process_time() - began) / STEPS

    for _ in range(4):  # the first ten steps update every time
        run()
    return run


def main() -> None:
    torch.set_num_threads(1)
    task = Chunks()
    figures, bars = {}, []
    for name, precision in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        factories = {"natural": NaturalGradientSGD(0.01, momentum=0.9), "sgd": SGD(0.01, momentum=0.9)}
        values = interleave({n: side(task, f, precision) for n, f in factories.items()}, REPEATS)
        ratio = median_ratio(values, "natural", "sgd")
        figures[name] = {"seconds_per_step": values, "ratio": ratio}
        bars.append(bar(f"natural gradient step / SGD step, {name}", ratio, 1.15))
    close("natural_gradient", figures, bars)


if __name__ == "__main__":
    main()
