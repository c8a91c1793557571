"""`murmur train --dry-run`: a preview of training from its first minibatches; nothing is saved."""

from __future__ import annotations

import math
import resource
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from murmur.accelerator.device import is_accelerator, most_allocated_bytes, synchronize
from murmur.core.counted import counted
from murmur.core.facts import training_learners
from murmur.core.flat import Layout
from murmur.core.model_mode import in_training
from murmur.core.moments import Moments
from murmur.engine.experiment import Experiment, describe, in_short
from murmur.engine.prefetch import to_device
from murmur.engine.record import duration
from murmur.engine.scaling import described
from murmur.engine.source import warn_of_optimizer
from murmur.engine.task import Loss, seed_of, seed_torch
from murmur.report.terminal_table import TerminalTable
from murmur.run.preparation import preparation_lines, to_prepare
from murmur.run.request import RunRequest
from murmur.run.saved_model import prepare
from murmur.run.timed import busy_line, timed
from murmur.run.training import share_threads
from murmur.worlds.process.environment import Place
from murmur.worlds.process.world import device_of
from murmur.worlds.virtual.cluster import Cluster

TIMED = 6  # minibatches to time, after a warm-up pass over the same ones
MOST_SECONDS = 20.0  # for a pass; with long steps it covers fewer minibatches
MB = 1e6
LEAST_TURNS = 1000  # runs of 154 to 243 turns lost up to 40 %, runs of 1,232 turns up to 8 %: docs/scaling.md


@dataclass(frozen=True)
class FirstSteps:
    """Measurements on the first minibatches: loss and norm at the initial weights, median and fastest step."""

    loss: float
    gradient_norm: float
    samples: float
    shapes: tuple[str, ...]
    step_seconds: float
    fastest_seconds: float
    steps: int
    optimizer_bytes: int


def dry_run(request: RunRequest, experiment: Experiment, prepared_only: bool, steps: bool = True) -> int:
    """Show an experiment: unprepared data, parameters, first minibatch, loss, gradient, memory, steps, time.

    Unprepared data is prepared, as for training. With `prepared_only` it is not: only the facts that do not need it
    are shown. Without `steps` no gradient is computed, which takes long for a large network, and loss and time are left
    out. Nothing is written to `request.out`.

    Returns:
        The exit status: 1 if the loss or the gradient is not a finite number.
    """
    console = Console()
    torch.set_num_threads(share_threads(request))
    missing = to_prepare(experiment.task)
    for line in [*experiment_lines(experiment, request.learners), *preparation_lines(missing)]:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    if missing and prepared_only:
        console.print("the model, the first minibatch and the time of a step need the prepared data")
        return 0
    busy = busy_line()
    if missing:
        console.print("a dry run prepares this data, as training does; with --no-prepare it does not", soft_wrap=True)
    with timed("preparing the data") if missing else nullcontext():
        prepare(experiment)
    device = device_of(Place(0, 1, 0, "127.0.0.1", 0))
    seed_torch(seed_of(experiment.seed, "model"), device)
    model = experiment.model().to(device)
    warn_of_optimizer(experiment.strategy, Moments(experiment.optimizer(model), Layout.trainable(model)))
    console.print(parameter_table(model))
    first = None
    if steps:
        with console.status("first minibatches"):
            first = first_steps(experiment, model, device)
    lines = first_lines(experiment, first)
    lines += plan_lines(experiment, request.learners, first)
    lines += [] if first is None else [busy]
    for line in [*lines, memory_line(model, first)]:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    return 0 if first is None or (math.isfinite(first.loss) and math.isfinite(first.gradient_norm)) else 1


def experiment_lines(experiment: Experiment, learners: int) -> list[str]:
    shown = {name: in_short(describe(getattr(experiment, name))) for name in ("strategy", "optimizer", "schedule")}
    budget = {name: value for name, value in vars(experiment.budget).items() if value is not None}
    told = ", ".join(f"{value:g} {name}" for name, value in budget.items()) or "1 epoch"
    number = counted(learners, "learner")
    training = training_learners(experiment.strategy, learners)
    if training < learners:
        number += f" ({training} train, {learners - training} only serve)"
    lines = [
        f"{type(experiment.task).__name__}, {number}, {told}",
        *(f"{name}: {text}" for name, text in shown.items()),
    ]
    if learners > 1:
        lines.append(f"scaling: {described(experiment.scaled(learners).rule, training, experiment.optimizer)}")
    return lines


def parameter_table(model: nn.Module) -> TerminalTable:
    heads = ("parameter", "shape", "type", "numbers")
    table = TerminalTable(heads, title=f"model: {type(model).__name__}", right=("numbers",))
    for name, tensor in model.named_parameters():
        kind = str(tensor.dtype).removeprefix("torch.") + ("" if tensor.requires_grad else ", frozen")
        table.add_row(name, " x ".join(map(str, tensor.shape)) or "scalar", kind, f"{tensor.numel():,}")
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    table.add_row("in all", "", "" if trained == total else f"{trained:,} trained", f"{total:,}", style="bold")
    return table


def first_steps(experiment: Experiment, model: nn.Module, device: str) -> FirstSteps:
    """Train a throw-away model on a few minibatches, as one learner would: one warm-up pass, one timed pass."""
    with in_training(model):
        return _timed_steps(experiment, model, device)


def measured_steps(experiment: Experiment) -> FirstSteps:
    """Measure the first steps of a prepared experiment on this machine's processor, and say so."""
    with timed("a step of one learner, on this machine"):
        seed_torch(seed_of(experiment.seed, "model"), "cpu")
        return first_steps(experiment, experiment.model(), "cpu")


def _timed_steps(experiment: Experiment, model: nn.Module, device: str) -> FirstSteps:
    optimizer = experiment.optimizer(model)
    loss, norm, samples, shapes = math.nan, math.nan, math.nan, tuple[str, ...]()
    most = min(TIMED, max(1, experiment.total))
    warm, hot = list[float](), list[float]()
    for seconds in (warm, hot):
        for n in range(most if seconds is warm else len(warm)):
            if n and sum(seconds) > MOST_SECONDS:
                break
            begin = time.perf_counter()
            minibatch = to_device(experiment.task.minibatch(n), device)
            found = _backward(experiment, model, minibatch, n)
            if not warm:
                samples, shapes = found.samples, tuple(shapes_of(minibatch))
                loss = float(found.total.detach()) / samples
                gradients = [p.grad for p in model.parameters() if p.grad is not None]
                norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            synchronize(device)
            seconds.append(time.perf_counter() - begin)
    state = sum(v.nbytes for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor))
    return FirstSteps(loss, norm, samples, shapes, median(hot), min(hot), len(hot), state)


def _backward(experiment: Experiment, model: nn.Module, minibatch: Any, n: int) -> Loss:
    seed_torch(seed_of(experiment.seed, "minibatch", n), next(model.parameters()).device.type)
    found = experiment.task.loss(model, minibatch)
    (found.total / found.samples).backward()  # type: ignore[no-untyped-call]
    return found


def first_lines(experiment: Experiment, first: FirstSteps | None) -> list[str]:
    if first is None:
        return [f"first minibatch: {'; '.join(shapes_of(experiment.task.minibatch(0)))}"]
    return [
        f"first minibatch: {first.samples:g} samples: {'; '.join(first.shapes)}",
        f"first loss {first.loss:.5f} per sample, gradient norm {first.gradient_norm:.5g}",
    ]


def plan_lines(experiment: Experiment, learners: int, first: FirstSteps | None) -> list[str]:
    scaled = experiment.scaled(learners)
    total, per_epoch = scaled.total, scaled.per_epoch
    training = training_learners(experiment.strategy, learners)
    steps = math.ceil(total / training)
    lines = [
        f"epoch: {counted(per_epoch, 'minibatch')}, {scaled.task.samples_per_epoch:g} samples",
        f"budget: {counted(total, 'minibatch')} = {total / per_epoch:.2f} epochs; {steps} steps for each of {training} "
        f"learner{'s' if training > 1 else ''}{' that train' if training < learners else ''}",
        *cluster_lines(experiment, learners),
    ]
    if first is not None:
        step_seconds = first.step_seconds / scaled.cut
        pieces = f"; 1/{scaled.cut} of a whole minibatch's time" if scaled.cut > 1 else ""
        lines.append(
            f"time: {step_seconds:.4f} s a step (median of {first.steps}, fastest"
            f" {first.fastest_seconds / scaled.cut:.4f}; one learner, no communication{pieces}), so"
            f" {duration(steps * step_seconds)} of gradients"
        )
    return [*lines, *turn_lines(scaled, training)]


def cluster_lines(experiment: Experiment, learners: int) -> list[str]:
    if not isinstance(experiment.cluster, Cluster) or experiment.cluster.learners == learners:
        return []
    many = experiment.cluster.learners
    scaled = experiment.scaled(many)
    samples = scaled.task.samples_per_epoch / scaled.per_epoch
    return [
        f"on the experiment's cluster of {many} learners: {math.ceil(scaled.total / many)} turns of all of them, each"
        f" over {many * samples:.0f} samples ({samples:.0f} a learner)"
    ]


def turn_lines(scaled: Experiment, learners: int) -> list[str]:
    """Warn, in numbers, if a run has fewer turns of all learners than a larger rate needs."""
    turns, growth = scaled.total / learners, scaled.rule.growth(learners)
    if learners == 1 or turns >= LEAST_TURNS:
        return []
    more = LEAST_TURNS / max(1.0, turns)
    ways = [f"{more:.1f} times as many epochs", f"minibatches of 1/{math.ceil(more)} of the samples"]
    if growth > 1:
        ways.append("--set scaling.minibatch=stays, which cuts each minibatch among the learners")
        ways.append("exact sums inside nodes, such as SuperLearners(ADPSGD(), 4)")
    warm = f", {turns * scaled.rule.warm:.0f} of them in the warm-up" if scaled.rule.rate and growth > 1 else ""
    return [
        f"warning: {turns:.0f} turns of {learners} learners{warm}; runs below {LEAST_TURNS} have been worse than with"
        f" one learner. Remedies: {'; '.join(ways)}"
    ]


def memory_line(model: nn.Module, first: FirstSteps | None) -> str:
    """Line about the memory of one learner: exact sizes of its vectors, and the peak so far; see `dry_run`."""
    weights = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    state = "" if first is None else f", optimizer {first.optimizer_bytes / MB:.1f}"
    known = f"weights {weights / MB:.1f}, gradients {gradients / MB:.1f}{state} MB"
    device = next(model.parameters()).device
    if is_accelerator(device):
        most = f"{most_allocated_bytes(device) / MB:.0f} MB of the GPU at most"
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        most = f"this process took at most {peak / MB:.0f} MB, data and libraries included"
    return f"memory of a learner: {known}; {most}"


def shapes_of(value: Any, name: str = "") -> list[str]:
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
