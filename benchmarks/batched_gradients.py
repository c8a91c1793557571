"""Gradients of many virtual learners: one call for all, weights stacked, against one call each.

    python benchmarks/batched_gradients.py

Three models, on a GPU if there is one, else on one thread of the processor: the recipe `toy`'s perceptron; a sigmoid
network on chunks of frames; an LSTM. torch cannot map its own LSTM over stacked weights, so the stacked one is written
cell by cell, with the same parameters; single calls use torch's. Gradients of both sides are compared before timing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from measure import bar, close, interleave, median_ratio
from murmur.core.flat import Layout
from murmur.engine.stacked import gradients_of
from murmur.engine.task import Stackable
from murmur.speech.features.chunks import ChunkBatch
from murmur.speech.models import Dnn
from murmur.speech.tasks.frames import FramesTask
from murmur.tasks.toy import ToyTask

KIND = "study"
LEARNERS, REPEATS, MIN_SECONDS = (8, 32), 5, 0.3
FRAMES, BINS, STATES, CELLS = 40, 40, 100, 64
GPU_BAR = 3.0


class TorchLstm(nn.Module):
    """torch's LSTM and a linear layer, x_NTF -> logits_NTC."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(BINS, CELLS, batch_first=True)
        self.output = nn.Linear(CELLS, STATES)

    def forward(self, x_NTF: Tensor) -> Tensor:
        return self.output(self.lstm(x_NTF)[0])


class CellLstm(TorchLstm):
    """The same function of the same parameters, one cell after another."""

    def forward(self, x_NTF: Tensor) -> Tensor:
        own = self.lstm
        into_NTG = linear(x_NTF, own.weight_ih_l0, own.bias_ih_l0 + own.bias_hh_l0)
        h_NH = c_NH = x_NTF.new_zeros(x_NTF.shape[0], CELLS)
        rows = []
        for t in range(x_NTF.shape[1]):
            i, f, g, o = (into_NTG[:, t] + linear(h_NH, own.weight_hh_l0)).chunk(4, -1)
            c_NH = f.sigmoid() * c_NH + i.sigmoid() * g.tanh()
            h_NH = o.sigmoid() * c_NH.tanh()
            rows.append(h_NH)
        return self.output(torch.stack(rows, 1))


@dataclass(frozen=True)
class Case:
    """A model and its minibatches; `stacked` is the model with mapped loss and the parameters of `alone`."""

    task: Stackable
    alone: Callable[[], nn.Module]
    stacked: Callable[[], nn.Module]
    minibatch: Callable[[], tuple[tuple[Tensor, ...], float]]


def chunk() -> ChunkBatch:
    return ChunkBatch(torch.randn(4, FRAMES, BINS), torch.randint(0, STATES, (4, FRAMES)))


def cases() -> dict[str, Case]:
    """The timed models."""
    toy, frames = ToyTask(), FramesTask()  # without opening a corpus
    network = Dnn(hidden=256, layers=4)
    return {
        "MLP": Case(toy, toy.model, toy.model, lambda: toy.tensors(toy.minibatch(0))),
        "DNN": Case(
            frames,
            lambda: network.build(BINS, STATES),
            lambda: network.build(BINS, STATES),
            lambda: frames.tensors(chunk()),
        ),
        "LSTM": Case(frames, TorchLstm, CellLstm, lambda: frames.tensors(chunk())),
    }


def each(task: Stackable, models: Sequence[nn.Module], tensors: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """One call per learner: the gradients (P,)."""
    found = []
    for model, minibatch in zip(models, tensors, strict=True):
        task.total(model, *minibatch).backward()  # type: ignore[no-untyped-call]
        found.append(Layout.trainable(model).gather_gradients()[0])
        model.zero_grad()
    return found


def at_once(task: Stackable, models: Sequence[nn.Module], tensors: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """One call for all: the gradients (P,), copied out as the virtual world needs them."""
    parts, _ = gradients_of(task, models, tensors, [1.0] * len(models))
    return [torch.cat([part[i].flatten() for part in parts if part is not None]) for i in range(len(models))]


def seconds(work: Callable[[], object], device: str) -> float:
    """Seconds of one call, averaged over enough calls for a stable figure."""
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < MIN_SECONDS:
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        done += 1
    return (time.perf_counter() - began) / done


def ratio(case: Case, learners: int, device: str) -> tuple[float, dict[str, list[float]]]:
    """Speed of one call relative to many, and all seconds."""
    alone = [case.alone().to(device) for _ in range(learners)]
    stacked = [case.stacked().to(device) for _ in range(learners)]
    for ours, theirs in zip(stacked, alone, strict=True):
        ours.load_state_dict(theirs.state_dict())
    tensors = [tuple(t.to(device) for t in case.minibatch()[0]) for _ in range(learners)]
    sides = {
        "each": partial(each, case.task, alone, tensors),
        "at once": partial(at_once, case.task, stacked, tensors),
    }
    for a, b in zip(sides["each"](), sides["at once"](), strict=True):
        if float((a - b).norm()) > 1e-4 * float(a.norm()):
            raise SystemExit(f"the gradients differ by {float((a - b).norm() / a.norm()):.2g} of their length")
    values = interleave({name: partial(seconds, work, device) for name, work in sides.items()}, REPEATS)
    return median_ratio(values, "each", "at once"), values


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"on {torch.cuda.get_device_name() if device == 'cuda' else 'one thread of the processor: no GPU here'}")
    figures: dict[str, object] = {"device": device}
    bars = []
    for name, case in cases().items():
        for learners in LEARNERS:
            print(f"{name}, {learners} learners, seconds:")
            faster, values = ratio(case, learners, device)
            print(f"{name}, {learners} learners: one call is {faster:.2f} times as fast", flush=True)
            figures[f"{name} {learners}"] = {"times_as_fast": faster, "seconds": values}
            if device == "cuda" and learners == max(LEARNERS):
                bars.append(
                    bar(f"{name}, {learners} learners: times as fast by one call", faster, GPU_BAR, at_most=False)
                )
    close("batched_gradients", figures, bars)


if __name__ == "__main__":
    main()
