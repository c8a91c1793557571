"""A step of an LSTM 4 x 512, one thread: the Trainer's against a bare loop's, and against the speed of matrix products.

float32 and bfloat16, 128 chunks of 21 frames (a learner's minibatch in IBM's papers), 40 features, 500 states.
Both sides take their steps in turn on the same minibatches; the products of two 2048 x 2048 matrices are timed between
them. Time is the processor's, so that other programs disturb less. On a CUDA device, if there is one, the model of
IBM's papers in bfloat16 is measured instead, in seconds of the wall clock.

    python benchmarks/lstm_step.py
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.functional import cross_entropy

from measure import bar, close
from murmur.accelerator.device import synchronize
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.task import Loss
from murmur.engine.trainer import Trainer
from murmur.speech.models import Blstm, Lstm, Network
from murmur.strategies import SyncSGD
from murmur.worlds.process.environment import Place
from murmur.worlds.process.world import ProcessWorld
from overhead import Chunks, compare

KIND = "bar"
STEPS, SIZE = 12, 2048
FORWARD, BACKWARD = 1, 2  # matrix products of a layer: y; dW and dx
IBM, BF16 = Blstm(512, 6, bottleneck=256), "bfloat16"


@dataclass(frozen=True)
class Frames(Chunks):
    """Random chunks for a network, at a given precision."""

    chunks: int = 128
    frames: int = 21
    inputs: int = 40
    outputs: int = 500
    network: Network = Lstm(hidden=512, layers=4)  # noqa: RUF009 - frozen
    precision: Literal["float32", "bfloat16"] = "float32"
    device: str = "cpu"

    def model(self) -> nn.Module:
        """A fresh network."""
        return self.network.build(self.inputs, self.outputs)

    @cached_property
    def data(self) -> list[tuple[Tensor, Tensor]]:
        """Eight minibatches, on the device."""
        torch.manual_seed(1)
        shape = (self.chunks, self.frames)
        drawn = [(torch.randn(*shape, self.inputs), torch.randint(self.outputs, shape)) for _ in range(8)]
        return [(feats.to(self.device), states.to(self.device)) for feats, states in drawn]

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, Tensor]) -> Loss:
        """Cross-entropy, products in the task's precision."""
        feats, states = minibatch
        with torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bfloat16"):
            logits = model(feats)
        total = cross_entropy(logits.float().flatten(0, 1), states.flatten(), reduction="sum")
        return Loss(total, float(states.numel()))


def multiplications(model: nn.Module, frames: int) -> float:
    """Floating point operations of all matrix products of a step; the lowest layer needs no gradient of its input."""
    weights = [p for p in model.parameters() if p.dim() == 2]
    return 2.0 * frames * (sum(p.numel() for p in weights) * (FORWARD + BACKWARD) - weights[0].numel())


def product_speed(dtype: torch.dtype) -> float:
    """Operations per CPU second of the fastest of a few large products."""
    a, b = torch.randn(SIZE, SIZE).to(dtype), torch.randn(SIZE, SIZE).to(dtype)
    best = float("inf")
    for _ in range(6):
        began = time.process_time()
        torch.mm(a, b)
        best = min(best, time.process_time() - began)
    return 2.0 * SIZE**3 / best


def on_cpu() -> None:
    """Both precisions, one thread."""
    torch.set_num_threads(1)
    figures, bars = {}, []
    for precision, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        task = Frames(precision=precision)  # type: ignore[arg-type]
        peaks = [product_speed(dtype)]
        ours, bare = compare(task, SyncSGD(), STEPS)
        peaks.append(product_speed(dtype))
        work = multiplications(task.model(), task.chunks * task.frames)
        speeds = [work / seconds for seconds in ours]
        print(f"{precision}: ours {[round(t, 4) for t in ours]}\n{precision}: bare {[round(t, 4) for t in bare]}")
        print(
            f"{precision}: products at {max(peaks) / 1e9:.1f} GFLOP/s, steps at {statistics.median(speeds) / 1e9:.1f}"
        )
        speed = statistics.median(b / o for o, b in zip(ours, bare, strict=True))
        share = statistics.median(speeds) / max(peaks)
        figures[precision] = {"ours": ours, "bare": bare, "peaks": peaks, "speed_ratio": speed, "share_of_peak": share}
        bars.append(bar(f"{precision}: speed of our step / bare step", speed, 0.98, at_most=False))
        bars.append(bar(f"{precision}: speed of our step / matrix products", share, 0.85, at_most=False))
    close("lstm_step", figures, bars)


def on_cuda() -> None:
    """IBM's BLSTM in bfloat16: our steps and a plain loop's, in turns of ten, in seconds of the wall clock."""
    figures, bars = device_steps(Frames(256, inputs=260, outputs=32_000, network=IBM, precision=BF16, device="cuda"), 7)
    close("lstm_step", {"device": torch.cuda.get_device_name(), **figures}, bars)


@dataclass(frozen=True)
class Timed(SGD):
    """An optimizer that notes when each of its steps is done on the device."""

    device: str = "cpu"
    marks: list[float] = field(default_factory=list)

    def __call__(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = super().__call__(model)

        def mark(*_: object) -> None:
            synchronize(self.device)
            self.marks.append(time.perf_counter())

        optimizer.register_step_post_hook(mark)
        return optimizer


def device_steps(task: Frames, repeats: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figures and bars of our steps and a plain loop's, in turns of ten."""
    place = Place(0, 1, 0, "127.0.0.1", 0)
    ours, bare = [], []
    for _ in range(repeats):
        timed = Timed(0.1, momentum=0.9, device=task.device)
        experiment = Experiment(task, SyncSGD(), Budget(minibatches=13), timed, scaling=Fixed())
        Trainer(experiment, ProcessWorld(place, task.device, store=HashStore())).fit()
        ours.append((timed.marks[-1] - timed.marks[2]) / 10)
        bare.append(plain_loop(task))
        print(f"ours {ours[-1]:.5f}  bare {bare[-1]:.5f} s a step", flush=True)
    speed = statistics.median(b / o for o, b in zip(ours, bare, strict=True))
    figures = {"ours_seconds": ours, "bare_seconds": bare, "speed_ratio": speed}
    return figures, [bar(f"LSTM in {task.precision}: speed of our step / plain loop", speed, 1.0, at_most=False)]


def plain_loop(task: Frames) -> float:
    """Seconds per step of a plain PyTorch loop."""
    model = task.model().to(task.device)
    optimizer = SGD(0.1, momentum=0.9)(model)
    began = 0.0
    for step in range(13):
        if step == 3:
            synchronize(task.device)
            began = time.perf_counter()
        loss = task.loss(model, task.minibatch(step))
        optimizer.zero_grad()
        (loss.total / loss.samples).backward()
        optimizer.step()
        float(loss.total.detach())
    synchronize(task.device)
    return (time.perf_counter() - began) / 10


if __name__ == "__main__":
    on_cuda() if torch.cuda.is_available() else on_cpu()
