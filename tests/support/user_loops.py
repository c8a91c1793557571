"""A user's training loop, run by several learners, and the same loop by hand, without a library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import murmur
from murmur.core.flat import Layout
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.user_loop.joined import Plan


class Net(nn.Module):
    """Model with a frozen part, BatchNorm, a tied tensor, and a parameter that never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.unused = nn.Linear(2, 2)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.square = nn.Linear(8, 8, bias=False)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.square.weight
        self.outer = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.frozen(torch.relu(self.inner(x))))
        return self.outer(torch.tanh(self.tied(torch.tanh(self.square(h)))))


def net(seed: int = 0) -> Net:
    """Return a model initialised from a separate generator: torch's belongs to all threads."""
    model, draw = Net(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw) / 3)
    return model


def optimizer_of(model: Net) -> torch.optim.Optimizer:
    """Return an optimizer of two parameter groups; one has decay and holds the frozen and the unused tensors."""
    first = [*model.inner.parameters(), *model.frozen.parameters(), *model.unused.parameters()]
    known = {id(p) for p in first}
    rest = [p for p in model.parameters() if id(p) not in known]
    return torch.optim.SGD([{"params": first, "weight_decay": 0.01}, {"params": rest, "lr": 0.02}], 0.05, momentum=0.9)


def batch(n: int, size: int = 4) -> tuple[Tensor, Tensor]:
    """Return minibatch n, the same for all learners."""
    draw = torch.Generator().manual_seed(1000 + n)
    return torch.randn(size, 6, generator=draw), torch.randint(0, 3, (size,), generator=draw)


def loss_of(model: nn.Module, n: int) -> Tensor:
    x, y = batch(n)
    return nn.functional.cross_entropy(model(x), y)


def evaluate(model: nn.Module) -> Mapping[str, float]:
    with torch.no_grad():
        return {"loss": float(loss_of(model, 999))}


def state(model: nn.Module) -> Tensor:
    """Return all of a model's parameters and floating-point buffers."""
    return Layout.everything(model).gather()


@dataclass(frozen=True)
class ForeignLoop:
    """Loop in which learner r takes `batches[r]` minibatches, `accumulate` per step; returns final state and gradients.

    Each learner begins with weights of its own, which learner 0's replace. `behind` tells for each learner if it
    announces the last backward pass of its steps.
    """

    strategy: Strategy
    batches: tuple[int, ...]
    accumulate: int = 3
    behind: tuple[bool, ...] = (False,) * 4

    async def __call__(self, seat: Seat) -> tuple[Tensor, bool]:
        rank, size = seat.group.rank, seat.group.size
        model = net(rank)
        optimizer = optimizer_of(model)
        steps = sum(-(-count // self.accumulate) for count in self.batches[:size])
        plan = Plan(total_steps=steps, samples_per_step=4.0 * self.accumulate, evaluate=evaluate)
        unused = False
        with murmur.join(self.strategy, model, optimizer, plan, seat) as me:
            for step, numbers in enumerate(micro_batches(self.batches[rank], self.accumulate)):
                total = torch.zeros(())
                samples = 4.0 * len(numbers)
                for i in numbers:
                    loss = loss_of(model, number(step, i, rank, size, self.accumulate)) / len(numbers)
                    last = self.behind[rank] and i == numbers[-1]
                    with me.last_backward(samples) if last else nullcontext():
                        loss.backward()
                    total += loss.detach()
                me.step(samples=samples, loss=float(total))
                unused = unused or any(p.grad is not None for p in model.unused.parameters())
        return state(model), unused


@dataclass(frozen=True)
class Words:
    """Small program of a user loop."""

    body: Callable[[Seat], object]

    async def __call__(self, seat: Seat) -> object:
        return self.body(seat)


def micro_batches(count: int, accumulate: int) -> list[Sequence[int]]:
    """Return the positions of the minibatches of each step: `accumulate` of them, the rest in the last step."""
    return [range(i, min(i + accumulate, count)) for i in range(0, count, accumulate)]


def number(step: int, i: int, rank: int, size: int, accumulate: int) -> int:
    """Return the minibatch at position i of learner `rank`: steps are assigned in turn."""
    return (step * size + rank) * accumulate + i % accumulate


def moved(end: Tensor) -> bool:
    """True if the trained weights differ from the initial ones in every element of the first tensor."""
    begun = net(0).inner.weight.detach().flatten()
    return bool((end[: begun.numel()] != begun).all())
