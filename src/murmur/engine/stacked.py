"""Gradients of many learners by one call: the loss of one is mapped over the stacked weights of all.

    g_i = d/dw_i sum_j loss(w_j; minibatch of j)        as the loss of j depends on w_j alone

Uses torch.func.vmap over torch.func.functional_call. On one core this gains for small models, whose operations cost
less than their calls (`benchmarks/batched_gradients.py` has figures). Sums have another order, so the last bits differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from murmur.core.flat import Layout
from murmur.core.model_mode import into_training
from murmur.core.source import Gradient, PendingGradient
from murmur.engine.experiment import Experiment
from murmur.engine.task import Stackable
from murmur.engine.task_source import TaskSource

Shapes = tuple[tuple[torch.Size, torch.dtype], ...]


class NotStackable(ValueError):
    """Error: the gradients of an experiment cannot be computed together."""


def check_stackable(experiment: Experiment) -> None:
    """Compute two gradients together, so that an experiment that cannot be stacked is refused before a run.

    Raises:
        NotStackable: The task is not `Stackable`, the model has running statistics or draws random numbers, the
            optimizer changes the backward pass, or torch cannot map an operation; names the reason.
    """
    task = experiment.task
    if not isinstance(task, Stackable):
        raise NotStackable(f"{type(task).__name__} does not offer gradients of many learners at once (Stackable)")
    model = into_training(experiment.model())
    if Layout.buffers(model).tensors:
        raise NotStackable("the model has running statistics, which every learner keeps by itself")
    if hasattr(experiment.optimizer(model), "preconditioning"):
        raise NotStackable(f"{type(experiment.optimizer).__name__} preconditions within each backward pass")
    tensors, samples = task.tensors(task.minibatch(0))
    try:
        gradients_of(task, [model, model], [tensors, tensors], [samples, samples])
    except RuntimeError as error:  # raised by vmap for random numbers, and for operations that it cannot map
        raise NotStackable(f"the model's loss cannot be mapped over stacked weights: {error}") from error


def draw_together(drawings: Sequence[PendingGradient]) -> list[Gradient]:
    tasks, sources = zip(*[source_of(pending) for pending in drawings], strict=True)
    found: dict[int, Gradient] = {}
    minibatches: dict[int, tuple[tuple[Tensor, ...], float]] = {}
    alike: dict[Shapes, list[int]] = defaultdict(list)
    for place, (task, source, drawing) in enumerate(zip(tasks, sources, drawings, strict=True)):
        minibatch = source.minibatch(drawing.n)
        if minibatch is None:
            found[place] = source.empty(drawing.n, None)
            continue
        minibatches[place] = task.tensors(minibatch)
        alike[tuple((t.shape, t.dtype) for t in minibatches[place][0])].append(place)
    for places in alike.values():
        models = [into_training(sources[p].model) for p in places]
        samples = [minibatches[p][1] for p in places]
        parts, losses = gradients_of(tasks[places[0]], models, [minibatches[p][0] for p in places], samples)
        for row, place in enumerate(places):
            own = [None if part is None else part[row] for part in parts]
            found[place] = sources[place].given(drawings[place].n, own, samples[row], losses[row])
    return [found[place] for place in range(len(drawings))]


def source_of(pending: PendingGradient) -> tuple[Stackable, TaskSource]:
    source = pending.source
    if not isinstance(source, TaskSource) or not isinstance(source.task, Stackable) or pending.before_backward:
        raise TypeError(f"minibatch {pending.n} is not of a Stackable, or its gradient is wanted bucket by bucket")
    return source.task, source


def gradients_of(
    task: Stackable,
    models: Sequence[nn.Module],
    minibatches: Sequence[tuple[Tensor, ...]],
    samples: Sequence[float],
) -> tuple[list[Tensor | None], list[float]]:
    """Return gradients of the mean losses of L models, each on its minibatch, by one forward and one backward pass.

    They are (L, ...) for each trainable tensor, or None without a gradient; then come the L losses per sample.
    """
    model = models[0]
    device = next(model.parameters()).device
    trainable = [Layout.trainable(m).tensors for m in models]
    known = {id(p): name for name, p in model.named_parameters()}
    names = [known[id(t)] for t in trainable[0]]
    stacks = [torch.stack([t.detach() for t in same]).requires_grad_() for same in zip(*trainable, strict=True)]
    inputs = [torch.stack(same).to(device) for same in zip(*minibatches, strict=True)]

    def total(weights: list[Tensor], tensors: list[Tensor]) -> Tensor:
        named = dict(zip(names, weights, strict=True))
        return task.total(lambda *x: functional_call(model, named, x), *tensors)

    means = vmap(total)(stacks, inputs) / torch.tensor(samples, device=device)
    parts = torch.autograd.grad(means.sum(), stacks, allow_unused=True)
    return list(parts), means.tolist()
