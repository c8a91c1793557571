"""What shows why learners lose against one: their distance, their staleness, their momenta, during a run.

With weights w_j and momenta m_j of the learners, at about 16 moments of a run:

    turn, distance sqrt(mean_j |w_j - mean w|^2), update |w' - w| and gradient |g| of one learner's step,
    momentum mean_j |m_j|, common momentum |mean_j m_j|

The virtual world has all learners in one process, so that their weights can be compared at one virtual moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from murmur.engine.record import Record

PROBED = ("turn", "distance", "update", "gradient", "momentum", "common momentum")
POINTS = 16


class Watch:
    """Watches the steps of a run.

    Attributes:
        stalest: largest staleness of a step.
        best: held-out figures of the evaluation point with the lowest loss.
        probes: values of `PROBED`.

    Args:
        turns: turns of the run.
        learners: number of learners that train. The moments of probes are those at which that many times a number of
            turns steps have been taken, so that learners in lock-step have taken equally many.
    """

    def __init__(self, turns: int, learners: int) -> None:
        self.stalest, self.best = 0, dict[str, float]()
        self.probes: list[list[float]] = []
        self._learners, self._every, self._steps = learners, max(1, turns // POINTS) * learners, 0
        self._known: dict[int, Optimizer] = {}
        self._before: Tensor | None = None

    def see(self, record: Record) -> None:
        if record.kind == "evaluation" and record.loss < self.best.get("loss", float("inf")):
            self.best = dict(record.figures)
        elif record.kind == "step":
            self.stalest = max(self.stalest, record.staleness)

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Watch the steps of all optimizers of this process."""
        hooks = register_optimizer_step_pre_hook(self._begin), register_optimizer_step_post_hook(self._end)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def told(self) -> dict[str, Any]:
        return {"stalest": self.stalest, "probes": self.probes}

    def _begin(self, optimizer: Optimizer, *_: Any) -> None:
        self._known[id(optimizer)] = optimizer
        self._steps += 1
        self._before = None if self._steps % self._every else flat(optimizer, weights)

    def _end(self, optimizer: Optimizer, *_: Any) -> None:
        if self._before is None:
            return
        w_LP = torch.stack([flat(each, weights) for each in self._known.values()])
        m_LP = torch.stack([flat(each, momentum) for each in self._known.values()])
        found = (
            (w_LP - w_LP.mean(0)).square().sum(1).mean().sqrt(),
            (flat(optimizer, weights) - self._before).norm(),
            flat(optimizer, gradient).norm(),
            m_LP.norm(dim=1).mean(),
            m_LP.mean(0).norm(),
        )
        rounded = (float(f"{float(value):.4g}") for value in found)
        self.probes.append([self._steps // self._learners, *rounded])


def flat(optimizer: Optimizer, part: Callable[[Optimizer, Tensor], Tensor | None]) -> Tensor:
    """A copy (P,) of a part of each tensor that an optimizer changes; zeros where it has none."""
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    found = ((p, part(optimizer, p)) for p in tensors)
    return torch.cat([(torch.zeros_like(p) if x is None else x).detach().flatten() for p, x in found])


def weights(_: Optimizer, p: Tensor) -> Tensor:
    return p


def gradient(_: Optimizer, p: Tensor) -> Tensor | None:
    return p.grad


def momentum(optimizer: Optimizer, p: Tensor) -> Tensor | None:
    found: Tensor | None = optimizer.state.get(p, {}).get("momentum_buffer")
    return found
