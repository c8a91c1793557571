"""Moments of a local optimizer as one vector, so that strategies can average them like the weights.

    (m, v, t)        Adam: mean and mean square of gradients, shape (P,) each, and the number of steps of each tensor
    (b,)             SGD with momentum

Each name is a vector over the tensors that have it. Optimizers with state of other names (RMSprop, Adagrad) are
refused, since averaging a part of it may make steps without bound.

A mean of moments keeps what one learner's moments satisfy by the inequality of Cauchy and Schwarz,

    m^2 <= C v,        C = (1 - beta1)^2 / ((1 - beta2) (1 - beta1^2 / beta2))

so that no step of Adam is longer than sqrt(C) rates (7.3 at the usual betas). Rounded vectors and additions that arrive
late can break it, and v near 0 beside a larger m is a step without bound. So v is raised to m^2 / C. For the same
reason m is never averaged without v: a unit without gradients on one learner has v = 0 there, and m != 0 from others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor

from murmur.core.flat import Layout
from murmur.core.group import Group
from murmur.core.shards import own_part
from murmur.core.weights import Weights

NAMES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")
SQUARES = ("exp_avg_sq", "max_exp_avg_sq")
STEPS = "step"  # one number for each tensor
_ORDER = (*NAMES, STEPS)  # in the vector
SLACK = 1.01  # on C, so that rounding in the optimizer never counts as a breach


class Moments:
    """Moments of an optimizer, with the names of torch.optim in its state, of the weights w (P,) in a layout."""

    def __init__(self, optimizer: torch.optim.Optimizer, layout: Layout) -> None:
        self.optimizer, self.layout = optimizer, layout
        self._made: dict[str, Layout] = {}
        self._initial: dict[Tensor, dict[str, Any]] | None = None  # state of the tensors without a step; None: unknown

    def check(self) -> None:
        """Check that the moments of the optimizer can be averaged.

        Raises:
            ValueError: The optimizer has state that is not known here, or takes no step on zeros.
        """
        self._states()

    @property
    def has_state(self) -> bool:
        """True if the optimizer keeps moments or counts of steps, known here or not."""
        try:
            return self.numel > 0
        except ValueError:
            return True

    @property
    def numel(self) -> int:
        """Length of the vector; 0 for an optimizer without moments."""
        return sum(layout.numel for layout in self._layouts().values())

    @property
    def sections(self) -> tuple[list[int], int]:
        """Length of the vector of each name, and number of the counts at the end."""
        numels = {name: layout.numel for name, layout in self._layouts().items()}
        counts = numels.pop(STEPS, 0)
        return list(numels.values()), counts

    def snapshot(self, out: Tensor | None = None) -> Tensor:
        """Return a copy of all moments, in the type of the weights' vector, in `out` if it is given."""
        out = self.layout.empty().new_empty(self.numel) if out is None else out
        for _, layout, part in self._cut(out):
            layout.gather(part)
        return out

    def set_(self, moments: Tensor) -> None:
        """Set all moments."""
        self._change(moments, lambda layout, part: layout.scatter(part))

    def add_(self, delta: Tensor, alpha: float = 1.0) -> None:
        """Add alpha times a vector to all moments."""
        self._change(delta, lambda layout, part: layout.add_(part, alpha))

    def _cut(self, vector: Tensor) -> list[tuple[str, Layout, Tensor]]:
        """Cut a vector into the part of each name; raise ValueError if it has another length."""
        layouts = self._layouts()
        lengths = [layout.numel for layout in layouts.values()]
        if vector.shape != (sum(lengths),):
            raise ValueError(f"expected a vector of {sum(lengths)} moments, got shape {tuple(vector.shape)}")
        return list(zip(layouts, layouts.values(), torch.split(vector, lengths), strict=True)) if lengths else []

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
        both = zip(self._cut(before), self._cut(mean), strict=True)
        parts = [self._moved(name, x, y, steps, blocks) for (name, _, x), (_, _, y) in both]
        return torch.cat(parts) if parts else mean.clone()

    def _moved(self, name: str, before: Tensor, mean: Tensor, steps: int, blocks: float) -> Tensor:
        groups = {t: group for group in self.optimizer.param_groups for t in group["params"]}
        states = zip(self.layout.tensors, self._states(), strict=True)
        decays = [_decay(name, groups[t]) for t, state in states if name in state]
        shares = [blocks if d is None or d == 1 else (1 - d ** (blocks * steps)) / (1 - d**steps) for d in decays]
        if len(set(shares)) == 1:
            return torch.lerp(before, mean, shares[0])
        counts = torch.tensor([end - start for start, end in self._made[name].bounds], device=before.device)
        return torch.lerp(before, mean, before.new_tensor(shares).repeat_interleave(counts))

    def _change(self, vector: Tensor, change: Callable[[Layout, Tensor], None]) -> None:
        parts, initial = self._cut(vector), self._initial or {}
        before = {t: {name: own_part(state[name]).clone() for name in _known(state)} for t, state in initial.items()}
        for _, layout, part in parts:
            change(layout, part)
        for t, known in before.items():
            # The optimizer makes the rest itself at the first step, which need not be one from zeros (with dampening).
            if any(not torch.equal(own_part(initial[t][name]), value) for name, value in known.items()):
                self.optimizer.state[t].update(initial.pop(t))
        self._bound()

    def _layouts(self) -> dict[str, Layout]:
        """{name: tensors of the weights that have it}, in the order of the vector."""
        states = self._states()
        found = {name: [state[name] for state in states if isinstance(state.get(name), Tensor)] for name in _ORDER}
        found = {name: tensors for name, tensors in found.items() if tensors}
        made = {name: list(map(id, layout.tensors)) for name, layout in self._made.items()}
        if {name: list(map(id, tensors)) for name, tensors in found.items()} != made:
            self._made = {name: Layout(tensors) for name, tensors in found.items()}
        return self._made

    def _states(self) -> list[dict[str, Any]]:
        """State of each weight: the optimizer's, or the initial one, kept here, of a weight that has had no step."""
        live = {t: self.optimizer.state.get(t, {}) for t in self.layout.tensors}
        new = {t for t, state in live.items() if not _known(state)}
        if self._initial is None:
            self._initial = self._after_a_step_on_zeros(self.layout.tensors)
        elif missing := [t for t in live if t in new and t not in self._initial]:
            self._initial.update(self._after_a_step_on_zeros(missing))
        if len(self._initial) > len(new):
            self._initial = {t: state for t, state in self._initial.items() if t in new}
        return [self._initial[t] if t in new else state for t, state in live.items()]

    def _after_a_step_on_zeros(self, tensors: list[Tensor]) -> dict[Tensor, dict[str, Any]]:
        """Return the initial state of weights, of an optimizer that has taken a step on zeros in their place.

        Averaging may call this while a gradient is being computed, so that weights and gradients must stay untouched.
        """
        zeros = {t: torch.zeros_like(t, requires_grad=True) for t in tensors}
        twin = copy(self.optimizer)
        twin.state = defaultdict(dict)
        twin.param_groups = [
            {**group, "params": [zeros[t] for t in group["params"] if t in zeros]}
            for group in self.optimizer.param_groups
        ]
        for t, zero in zeros.items():
            zero.grad = torch.zeros_like(zero)
            state = self.optimizer.state.get(t, {})
            if _known(state):  # some optimizers make state when they are made, and need it
                twin.state[zero].update({name: state[name].clone() for name in _known(state)})
        _step(type(self.optimizer), twin)
        initial = {t: twin.state.get(zero, {}) for t, zero in zeros.items()}
        for state in initial.values():
            if STEPS in _known(state):
                state[STEPS].zero_()
        return initial

    def _bound(self) -> None:
        """Raise v to m^2 / C, and other squares to 0."""
        for group in self.optimizer.param_groups:
            betas = group.get("betas")
            for t in group["params"]:
                state: dict[str, Any] = self.optimizer.state.get(t, {})
                largest = _largest_ratio(betas)
                bounded = {"exp_avg", "exp_avg_sq"} <= state.keys() and largest is not None
                for name in SQUARES:
                    if isinstance(state.get(name), Tensor) and not (bounded and name == "exp_avg_sq"):
                        own_part(state[name]).clamp_(min=0)
                if bounded and largest is not None:
                    m, v = own_part(state["exp_avg"]), own_part(state["exp_avg_sq"])
                    torch.maximum(v, m.square().div_(largest).to(v.dtype), out=v)


def _known(state: Mapping[str, Any]) -> list[str]:
    """Return the names of the known moments in the state of a tensor."""
    return [name for name in _ORDER if isinstance(state.get(name), Tensor)]


def _decay(name: str, group: dict[str, Any]) -> float | None:
    """Return the decay of a moment per step; None for a count of steps."""
    beta1, beta2 = group.get("betas", (0.0, 0.0))
    momentum = group.get("momentum", 0.0)
    decays = {"exp_avg": beta1, "exp_avg_sq": beta2, "max_exp_avg_sq": beta2, "momentum_buffer": momentum}
    return None if name == STEPS else float(decays[name])


def _step(kind: type[torch.optim.Optimizer], twin: torch.optim.Optimizer) -> None:
    """Let a twin of an optimizer take its first step; raise ValueError if its state is unknown, or it takes no step."""
    refused = f"the moments of {kind.__name__} cannot be averaged ({{}}): choose moments='local'"
    try:
        kind.step(twin)  # not the instance's: a learning rate scheduler may have replaced that
    except KeyError as error:  # made by the optimizer before its first step
        raise ValueError(refused.format(f"its state {error.args[0]} is not known")) from error
    except (TypeError, RuntimeError) as error:
        raise ValueError(refused.format(f"it takes no step on zeros: {error}")) from error
    made = {name for state in twin.state.values() for name, value in state.items() if isinstance(value, Tensor)}
    if unknown := sorted(made - {*_ORDER}):
        raise ValueError(refused.format(f"its state {', '.join(unknown)} is not known"))


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

    def declare_to(self, group: Group) -> None:
        """Let a group compress weights and each kind of moments apart, and send counts of steps in full."""
        lengths, counts = self.moments.sections
        group.declare_sections((self.weights.layout.numel, *lengths), counts)

    def snapshot(self, out: Tensor | None = None) -> Tensor:
        P, layout = self.weights.layout.numel, self.weights.layout
        with self.weights.section():
            both = layout.empty().new_empty(P + self.moments.numel) if out is None else out
            self.weights.snapshot(both[:P])
            self.moments.snapshot(both[P:])
            return both

    def set_(self, both: Tensor) -> None:
        P = self.weights.layout.numel
        with self.weights.section():
            self.weights.set_(both[:P])
            self.moments.set_(both[P:])

    def pull_(self, theirs: Tensor, mine: Tensor, alpha: float) -> None:
        P = self.weights.layout.numel
        with self.weights.section():
            self.weights.pull_(theirs[:P], mine[:P], alpha)
            self.moments.add_(theirs[P:] - mine[P:], alpha)
