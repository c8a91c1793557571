"""`murmur train --dry-run`: what training would do, seen on its first minibatches; nothing is trained or written."""

from __future__ import annotations

import math
import resource
import sys
import time
from dataclasses import dataclass, fields, is_dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from murmur.engine.experiment import Experiment
from murmur.engine.prefetch import to_device
from murmur.engine.seeds import seed_of, seed_torch
from murmur.engine.task import Loss
from murmur.training import Request, share_threads
from murmur.worlds.torch.environment import Place
from murmur.worlds.torch.world import device_of

TIMED = 5  # minibatches whose steps are timed, after the first
MB = 1e6


@dataclass(frozen=True)
class FirstSteps:
    """What the first minibatches showed.

    Attributes:
        loss: mean per sample of minibatch 0 at the initial weights.
        gradient_norm: of its gradient.
        samples: in minibatch 0.
        shapes: what minibatch 0 is made of.
        step_seconds: median time of a step, data included, without the first.
        optimizer_bytes: state of the optimizer.
    """

    loss: float
    gradient_norm: float
    samples: float
    shapes: tuple[str, ...]
    step_seconds: float
    optimizer_bytes: int


def dry_run(request: Request) -> int:
    """Show an experiment: parameters, first minibatch, loss, gradient, memory, steps, time.

    Data that is not prepared yet is prepared, as for training; nothing is written to `request.out`.

    Returns:
        The exit status: 1 if the loss or the gradient is not a finite number.

    Raises:
        SettingError: names or values that do not fit.
    """
    console = Console()
    torch.set_num_threads(share_threads(request))
    experiment = request.experiment()
    with console.status("preparing the data"):
        experiment.task.prepare()
    device = device_of(Place(0, 1, 0, "127.0.0.1", 0))
    seed_torch(seed_of(experiment.seed, "model"), device)
    model = experiment.task.model().to(device)
    console.print(parameter_table(model))
    with console.status("first minibatches"):
        first = first_steps(experiment, model, device)
    for line in (*first_lines(first), *plan_lines(experiment, request.learners, first), memory_line(model, first)):
        console.print(line, highlight=False, soft_wrap=True)
    return 0 if math.isfinite(first.loss) and math.isfinite(first.gradient_norm) else 1


def parameter_table(model: nn.Module) -> Table:
    """Every parameter with its shape and size; frozen ones are marked."""
    table = Table("parameter", "shape", "type", title=f"model: {type(model).__name__}")
    table.add_column("numbers", justify="right")
    for name, tensor in model.named_parameters():
        kind = str(tensor.dtype).removeprefix("torch.") + ("" if tensor.requires_grad else ", frozen")
        table.add_row(name, " x ".join(map(str, tensor.shape)) or "scalar", kind, f"{tensor.numel():,}")
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    table.add_row("in all", "", "" if trained == total else f"{trained:,} trained", f"{total:,}", style="bold")
    return table


def first_steps(experiment: Experiment, model: nn.Module, device: str) -> FirstSteps:
    """Train a few minibatches as one learner would, on a model that is thrown away."""
    optimizer = experiment.optimizer(model)
    model.train()
    seconds, loss, norm, samples, shapes = [], math.nan, math.nan, math.nan, tuple[str, ...]()
    for n in range(min(TIMED + 1, max(1, experiment.budget.total(experiment.task)))):
        begin = time.perf_counter()
        minibatch = to_device(experiment.task.minibatch(n), device)
        found = _backward(experiment, model, minibatch, n)
        if n == 0:
            loss, samples, shapes = (
                float(found.total.detach()) / found.samples,
                found.samples,
                tuple(shapes_of(minibatch)),
            )
            norm = math.sqrt(
                sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None)
            )
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    state = sum(v.nbytes for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor))
    return FirstSteps(loss, norm, samples, shapes, median(seconds[1:] or seconds), state)


def _backward(experiment: Experiment, model: nn.Module, minibatch: Any, n: int) -> Loss:
    seed_torch(seed_of(experiment.seed, "minibatch", n), next(model.parameters()).device.type)
    found = experiment.task.loss(model, minibatch)
    (found.total / found.samples).backward()  # type: ignore[no-untyped-call]
    return found


def first_lines(first: FirstSteps) -> list[str]:
    """Minibatch 0, its loss and gradient."""
    shapes = "; ".join(first.shapes)
    return [
        f"first minibatch: {first.samples:g} samples: {shapes}",
        f"first loss {first.loss:.5f} per sample, gradient norm {first.gradient_norm:.5g}",
    ]


def plan_lines(experiment: Experiment, learners: int, first: FirstSteps) -> list[str]:
    """Steps, budget and time of the whole run."""
    task, total = experiment.task, experiment.budget.total(experiment.task)
    steps = math.ceil(total / learners)
    seconds = steps * first.step_seconds
    return [
        f"epoch: {task.per_epoch} minibatches, {task.samples_per_epoch:g} samples",
        f"budget: {total} minibatches = {total / task.per_epoch:.2f} epochs; {steps} steps for each of {learners} "
        f"learner{'s' if learners > 1 else ''}",
        f"time: {first.step_seconds:.4f} s a step (one learner on an idle machine, nothing exchanged), "
        f"so {seconds:.0f} s = {seconds / 3600:.2f} h of gradients",
    ]


def memory_line(model: nn.Module, first: FirstSteps) -> str:
    """Memory of one learner: what is known to the byte, and the most that these steps took."""
    weights = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    known = f"weights {weights / MB:.1f}, gradients {gradients / MB:.1f}, optimizer {first.optimizer_bytes / MB:.1f} MB"
    if next(model.parameters()).is_cuda:
        most = f"{torch.cuda.max_memory_allocated() / MB:.0f} MB of the GPU at the most"
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        most = f"this process took {peak / MB:.0f} MB at the most, data and libraries included"
    return f"memory of a learner: {known}; {most}"


def shapes_of(value: Any, name: str = "") -> list[str]:
    """Names, shapes and types of what a minibatch is made of."""
    title = f"{name} " if name else ""
    if isinstance(value, Tensor | np.ndarray):
        kind = str(value.dtype).removeprefix("torch.")
        return [f"{title}{tuple(value.shape)} {kind}"]
    if is_dataclass(value) and not isinstance(value, type):
        return [line for f in fields(value) for line in shapes_of(getattr(value, f.name), f.name)]
    if isinstance(value, dict):
        return [line for key, each in value.items() for line in shapes_of(each, str(key))]
    if isinstance(value, tuple | list) and any(isinstance(v, Tensor | np.ndarray) for v in value):
        return [line for n, each in enumerate(value) for line in shapes_of(each, f"{name}[{n}]")]
    if isinstance(value, tuple | list):
        return [f"{title}{len(value)} x {type(value[0]).__name__}" if value else f"{title}empty"]
    return [f"{title}{value!r}"[:60]]
