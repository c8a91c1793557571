"""Gradients of many learners by one call on a GPU: a graph of the mapped pass, replayed.

Equation: `murmur.engine.stacked`. Small networks gain most: on a GPU the gradient of one learner costs as much as those
of many, since the chip is not full, and a graph launches all kernels of a pass by one call. The pass of one learner
alone is not mapped, so that cuDNN's fused LSTM kernels can run it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from murmur.accelerator.device import pinned, recorded
from murmur.core.flat import Layout
from murmur.core.model_mode import into_training
from murmur.core.source import Gradient, PendingGradient
from murmur.core.trace import DATA
from murmur.engine.stacked import Shapes, source_of
from murmur.engine.task import Fillable, Stackable
from murmur.engine.task_source import TaskSource

Ready = tuple[int, TaskSource, tuple[Tensor, ...], float]  # place, source, minibatch, samples


class DeviceGradients:
    """Computes pending gradients together on a device; see `murmur.core.source.ComputeBatch`.

    Minibatches of a `Fillable` task are filled up to the largest one so far, and the number of learners to the next
    power of two, so that few graphs are recorded.

    Args:
        device: Device, such as "cuda" (a graph for each shape) or "cpu" (no graph).
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._passes: dict[tuple[int, Shapes], MappedPass] = {}
        self._units = 0

    def __call__(self, drawings: Sequence[PendingGradient]) -> list[Gradient]:
        """Compute gradients, in their order.

        Raises:
            FloatingPointError: As for `TaskSource.draw`.
        """
        found: dict[int, Gradient] = {}
        ready: list[Ready] = []
        for place, pending in enumerate(drawings):
            task, source = source_of(pending)
            with source.seat.trace.span(DATA, f"minibatch {pending.n}"):
                minibatch = source.experiment.minibatch(pending.n, *source.piece)
            if minibatch is None:
                found[place] = source.empty(pending.n, None)
            else:
                ready.append((place, source, *task.tensors(minibatch)))
        for shapes, alike in self._filled(ready).items():
            parts, losses, totals = self._pass(alike, shapes)(alike)
            for row, (place, source, _, samples) in enumerate(alike):
                own = [None if part is None else part[row] for part in parts]
                found[place] = source.given(drawings[place].n, own, samples, losses[row], totals[row])
        return [found[place] for place in range(len(drawings))]

    def _filled(self, ready: Sequence[Ready]) -> dict[Shapes, list[Ready]]:
        """Minibatches by their shapes, after filling."""
        alike: dict[Shapes, list[Ready]] = defaultdict(list)
        self._units = max([self._units, *(len(tensors[0]) for _, _, tensors, _ in ready)])
        for place, source, tensors, samples in ready:
            task = source.task
            whole = task.filled(tensors, self._units) if isinstance(task, Fillable) else tensors
            alike[tuple((t.shape, t.dtype) for t in whole)].append((place, source, whole, samples))
        return alike

    def _pass(self, alike: Sequence[Ready], shapes: Shapes) -> MappedPass:
        learners = 1 << (len(alike) - 1).bit_length()
        if (learners, shapes) not in self._passes:
            source = alike[0][1]
            assert isinstance(source.task, Stackable)  # `source_of` has checked it
            self._passes[learners, shapes] = MappedPass(source.task, source.model, learners, shapes, self._device)
        return self._passes[learners, shapes]


class MappedPass:
    """The forward and backward pass of a number of learners on minibatches of given shapes; mapped for several.

    Args:
        task: Task of all learners.
        model: Model of one of them; its frozen tensors are those of all.
        learners: Number of learners, L.
        shapes: Shapes and types of a minibatch's tensors.
        device: Device of the pass.
    """

    def __init__(self, task: Stackable, model: nn.Module, learners: int, shapes: Shapes, device: torch.device) -> None:
        self._task, self._model = task, into_training(deepcopy(model)).to(device)
        layout = Layout.trainable(self._model)
        known = {id(p): name for name, p in self._model.named_parameters()}
        self._names = [known[id(t)] for t in layout.tensors]
        self._sizes = [(bounds, t.shape) for bounds, t in zip(layout.bounds, layout.tensors, strict=True)]
        self._weights = torch.zeros(learners, layout.numel, dtype=layout.dtype, device=device)
        self._here = [pinned(torch.zeros(learners, *shape, dtype=dtype), device) for shape, dtype in shapes]
        self._minibatch = [here.to(device, copy=True) for here in self._here]
        self._samples = torch.ones(learners, device=device)
        self._run = recorded(self._compute, device)

    def __call__(self, alike: Sequence[Ready]) -> tuple[list[Tensor | None], list[float], list[float]]:
        """Compute the gradients of the mean losses; they are valid until the next call.

        Returns:
            For each trainable tensor the gradients (L, ...), or None; the losses; the sums of the gradients' elements.
        """
        for row, (_, source, tensors, _) in enumerate(alike):
            source.layout.gather(self._weights[row])
            for here, tensor in zip(self._here, tensors, strict=True):
                here[row].copy_(tensor)
        for here, there in zip(self._here, self._minibatch, strict=True):
            there.copy_(here, non_blocking=True)
        self._samples[: len(alike)] = torch.tensor([samples for *_, samples in alike])
        self._run()
        parts = [part if there else None for part, there in zip(self._cut(self._gradients), self._present, strict=True)]
        losses, totals = self._figures.tolist()  # waits for the device, so that `_here` may be written again
        return parts, losses, totals

    def _cut(self, flat_LP: Tensor) -> list[Tensor]:
        return [flat_LP[:, first:last].view(-1, *shape) for (first, last), shape in self._sizes]

    def _compute(self) -> None:
        """Compute gradients (L, P), losses and sums of gradients (2, L) of what is on the device."""
        stacks = [part.detach().requires_grad_() for part in self._cut(self._weights)]

        def total(weights: list[Tensor], tensors: list[Tensor]) -> Tensor:
            named = dict(zip(self._names, weights, strict=True))
            return self._task.total(lambda *x: functional_call(self._model, named, x), *tensors)

        if len(self._weights) == 1:
            totals_L = total([part[0] for part in stacks], [tensor[0] for tensor in self._minibatch])[None]
        else:
            totals_L = vmap(total)(stacks, self._minibatch)
        means_L = totals_L / self._samples
        parts = torch.autograd.grad(means_L.sum(), stacks, allow_unused=True)
        self._present = [part is not None for part in parts]
        given = [torch.zeros_like(s) if p is None else p for p, s in zip(parts, stacks, strict=True)]
        self._gradients = torch.cat([part.flatten(1) for part in given], 1)
        self._figures = torch.stack([means_L.detach(), self._gradients.sum(1)])
