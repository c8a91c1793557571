"""Moments of a local optimizer as one vector, so that strategies can average them like the weights.

    (m, v, t)        Adam: mean and mean square of gradients, shape (P,) each, and the number of steps of each tensor
    (b,)             SGD with momentum

A mean of moments keeps what one learner's moments satisfy by the inequality of Cauchy and Schwarz,

    m^2 <= C v,        C = (1 - beta1)^2 / ((1 - beta2) (1 - beta1^2 / beta2))

so that no step of Adam is longer than sqrt(C) rates (7.3 at the usual betas). Rounded vectors and additions that arrive
late can break it, and v near 0 beside a larger m is a step without bound. So v is raised to m^2 / C. For the same
reason m is never averaged without v: a unit without gradients on one learner has v = 0 there, and m != 0 from others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from torch import Tensor

from murmur.core.flat import Layout
from murmur.core.weights import Weights

NAMES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta")
SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta")  # never negative
STEPS = "step"
SLACK = 1.01  # on C, so that rounding in the optimizer never counts as a breach


class Moments:
    """Moments of an optimizer, of the weights in a layout.

    Args:
        optimizer: Optimizer of the learner, with the names of torch.optim in its state.
        layout: Weights w (P,).
    """

    def __init__(self, optimizer: torch.optim.Optimizer, layout: Layout) -> None:
        self.optimizer, self.layout = optimizer, layout
        self._made: dict[str, Layout] = {}

    @property
    def numel(self) -> int:
        """Length of the vector; 0 for an optimizer without moments."""
        return sum(layout.numel for layout in self._layouts().values())

    def snapshot(self, out: Tensor | None = None) -> Tensor:
        """Return a copy of all moments, in the type of the weights' vector, in `out` if it is given."""
        layouts = self._layouts().values()
        if out is None:
            out = self.layout.empty().new_empty(sum(layout.numel for layout in layouts))
        at = 0
        for layout in layouts:
            layout.gather(out[at : at + layout.numel])
            at += layout.numel
        return out

    def set_(self, moments: Tensor) -> None:
        """Set all moments.

        Raises:
            ValueError: The vector has another length.
        """
        self._change(moments, lambda layout, part: layout.scatter(part))

    def add_(self, delta: Tensor, alpha: float = 1.0) -> None:
        """Add alpha times a vector to all moments.

        Raises:
            ValueError: The vector has another length.
        """
        self._change(delta, lambda layout, part: layout.add_(part, alpha))

    def moved_on(self, before: Tensor, mean: Tensor, steps: int, blocks: float) -> Tensor:
        """Return moments of an outer step that is longer or shorter than the mean change of the weights.

            x(t + K) = d^K x(t) + (1 - d^K) E          E: statistics of the block's gradients
            result     d^(b K) x(t) + (1 - d^(b K)) E

        x: a moment with decay d per step. Chen, Ding & Huo, ICASSP 2020.

        Args:
            before: Moments at the start of the block.
            mean: Mean of the learners' moments at its end.
            steps: Steps K of the block.
            blocks: Length b of the outer step, in mean changes of a block.
        """
        parts, at = [], 0
        for name, layout in self._layouts().items():
            decay = self._decay(name)
            share = blocks if decay is None else (1 - decay ** (blocks * steps)) / (1 - decay**steps)
            piece = slice(at, at + layout.numel)
            parts.append(torch.lerp(before[piece], mean[piece], share))
            at += layout.numel
        return torch.cat(parts) if parts else mean.clone()

    def _decay(self, name: str) -> float | None:
        """Return the decay of a moment per step; None for a count of steps."""
        group = self.optimizer.param_groups[0]
        beta1, beta2 = group.get("betas", (0.0, 0.0))
        decays = {"exp_avg": beta1, "grad_avg": beta1, "exp_avg_sq": beta2, "max_exp_avg_sq": beta2}
        decays |= {"momentum_buffer": group.get("momentum", 0.0), "square_avg": group.get("alpha", 0.0)}
        decays |= {"acc_delta": group.get("rho", 0.0)}
        return None if name == STEPS else float(decays[name])

    def _change(self, vector: Tensor, change: Callable[[Layout, Tensor], None]) -> None:
        layouts = self._layouts()
        if vector.shape != (sum(layout.numel for layout in layouts.values()),):
            raise ValueError(f"expected a vector of {self.numel} moments, got shape {tuple(vector.shape)}")
        at = 0
        for layout in layouts.values():
            change(layout, vector[at : at + layout.numel])
            at += layout.numel
        self._bound()

    def _layouts(self) -> dict[str, Layout]:
        """{name: tensors of all weights}, in the order of the vector; made if no step has made them yet."""
        self._begin()
        states = [self.optimizer.state[t] for t in self.layout.tensors]
        if self._made and all(
            state.get(name) is tensor
            for name, layout in self._made.items()
            for state, tensor in zip(states, layout.tensors, strict=True)
        ):
            return self._made  # the optimizer still has these tensors
        names = [name for name in NAMES if all(isinstance(state.get(name), Tensor) for state in states)]
        counted = [STEPS] if all(isinstance(state.get(STEPS), Tensor) for state in states) else []
        self._made = {name: Layout(state[name] for state in states) for name in [*names, *counted]}
        return self._made

    def _begin(self) -> None:
        """Make the moments of weights that no step has changed yet, by a step on zeros in their place.

        Averaging may call this while a gradient is being computed, so that weights and gradients must stay untouched.
        """
        new = [t for t in self.layout.tensors if self.optimizer.state.get(t, {}).keys().isdisjoint(NAMES)]
        if not new:
            return
        zeros = {t: torch.zeros_like(t, requires_grad=True) for t in new}
        twin = copy(self.optimizer)
        twin.state = defaultdict(dict)
        twin.param_groups = [
            {**group, "params": [zeros[t] for t in group["params"] if t in zeros]}
            for group in self.optimizer.param_groups
        ]
        for t in zeros.values():
            t.grad = torch.zeros_like(t)
        type(self.optimizer).step(twin)  # not the instance's: a learning rate scheduler may have replaced that
        for t, zero in zeros.items():
            self.optimizer.state[t].update(twin.state[zero])
            steps = self.optimizer.state[t].get(STEPS)
            if isinstance(steps, Tensor):
                steps.zero_()

    def _bound(self) -> None:
        """Raise v to m^2 / C, and other squares to 0."""
        for group in self.optimizer.param_groups:
            largest = _largest_ratio(group.get("betas"))
            for t in group["params"]:
                state: dict[str, Any] = self.optimizer.state.get(t, {})
                bounded = largest is not None and {"exp_avg", "exp_avg_sq"} <= state.keys()
                for name in SQUARES:
                    if isinstance(state.get(name), Tensor) and not (bounded and name == "exp_avg_sq"):
                        state[name].clamp_(min=0)
                if bounded:
                    v = state["exp_avg_sq"]
                    torch.maximum(v, state["exp_avg"].square().div_(largest).to(v.dtype), out=v)


def _largest_ratio(betas: Any) -> float | None:
    """Return C, the largest m^2 / v of Adam; None if there is no bound."""
    if not isinstance(betas, tuple) or len(betas) != 2:
        return None
    beta1, beta2 = (float(beta) for beta in betas)
    if not beta1**2 < beta2 < 1:
        return None
    return SLACK * (1 - beta1) ** 2 / ((1 - beta2) * (1 - beta1**2 / beta2))


class WeightsAndMoments:
    """Live weights and moments of a learner as one vector, (P + M,), that averaging may change like weights.

    Each method is one critical section of the weights, which a step of the optimizer takes too.
    """

    def __init__(self, weights: Weights, moments: Moments) -> None:
        self.weights, self.moments = weights, moments

    def snapshot(self) -> Tensor:
        """Return a copy of both."""
        P = self.weights.layout.numel
        with self.weights.section():
            both = self.weights.layout.empty().new_empty(P + self.moments.numel)
            self.weights.snapshot(both[:P])
            self.moments.snapshot(both[P:])
            return both

    def set_(self, both: Tensor) -> None:
        """Set both. Changes since the snapshot was taken are lost."""
        P = self.weights.layout.numel
        with self.weights.section():
            self.weights.set_(both[:P])
            self.moments.set_(both[P:])

    def add_(self, delta: Tensor, alpha: float = 1.0) -> None:
        """Add alpha times a vector to both. Steps that landed in the meantime are kept."""
        P = self.weights.layout.numel
        with self.weights.section():
            self.weights.add_(delta[:P], alpha)
            self.moments.add_(delta[P:], alpha)
