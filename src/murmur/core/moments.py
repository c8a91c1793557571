"""Moments of a local optimizer as one vector, so that strategies can average them like the weights.

    (m, v, t)        Adam: mean and mean square of gradients, shape (P,) each, and the number of steps of each tensor
    (b,)             SGD with momentum

Known is the state of all optimizers of torch.optim with dense gradients; each name is a vector over the tensors that
have it. ASGD's `eta` and `mu` follow from the count of steps and no step depends on its `ax`: these stay with each
learner. Optimizers with state of other names are refused, since averaging a part of it may make steps without bound.

A mean of moments keeps what one learner's moments satisfy by the inequality of Cauchy and Schwarz,

    m^2 <= C v,        C = (1 - beta1)^2 / ((1 - beta2) (1 - beta1^2 / beta2))

so that no step of Adam is longer than sqrt(C) rates (7.3 at the usual betas). Rounded vectors and additions that arrive
late can break it, and v near 0 beside a larger m is a step without bound. So v is raised to m^2 / C. For the same
reason m is never averaged without v: a unit without gradients on one learner has v = 0 there, and m != 0 from others.
Adamax has u, the decaying maximum of |g|, in place of v; u is raised to |m| / c, c = (1 - beta1) / (1 - beta1 / beta2).
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
from murmur.core.weights import Weights

FACTORS = ("row_var", "col_var", "variance")  # Adafactor's mean squares
NAMES = (
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta"),
    *("exp_inf", "sum", *FACTORS, "prev", "step_size", "mu_product"),
)
SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "exp_inf", "sum", *FACTORS, "mu_product")
STEPS = "step"
_ORDER = (*NAMES, STEPS)  # in the vector
COUNTS = ("mu_product", STEPS)  # one number for each tensor; the last ones in the vector
LEFT = frozenset({"ax", "eta", "mu"})  # ASGD's, which stay with each learner
AT_FIRST = {STEPS: 0.0, "mu_product": 1.0, "exp_inf": 0.0}  # what a step on zeros changes
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
        self._initial: dict[Tensor, dict[str, Any]] | None = None  # state of the tensors without a step; None: unknown

    def check(self) -> None:
        """Check that the moments of the optimizer can be averaged.

        Raises:
            ValueError: The optimizer has state that is not known here, or takes no step on zeros.
        """
        self._states()

    @property
    def kept(self) -> bool:
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
        return [n for name, n in numels.items() if name not in COUNTS], sum(numels.get(name, 0) for name in COUNTS)

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
            piece = slice(at, at + layout.numel)
            parts.append(self._moved(name, before[piece], mean[piece], steps, blocks))
            at += layout.numel
        return torch.cat(parts) if parts else mean.clone()

    def _moved(self, name: str, before: Tensor, mean: Tensor, steps: int, blocks: float) -> Tensor:
        """Return the vector of one name after an outer step."""
        if name == "mu_product":  # a product of decays
            return before * torch.where(before > 0, mean / before, torch.zeros_like(mean)) ** blocks
        decays = [self._decay(name, group) for group in self._groups_with(name)]
        shares = [blocks if d is None or d == 1 else (1 - d ** (blocks * steps)) / (1 - d**steps) for d in decays]
        if len(set(shares)) == 1:
            return torch.lerp(before, mean, shares[0])
        counts = torch.tensor([t.numel() for t in self._made[name].tensors], device=before.device)
        return torch.lerp(before, mean, before.new_tensor(shares).repeat_interleave(counts))

    def _groups_with(self, name: str) -> list[dict[str, Any]]:
        """Return the optimizer's group of each weight that has a moment of this name."""
        groups = {t: group for group in self.optimizer.param_groups for t in group["params"]}
        return [groups[t] for t, state in zip(self.layout.tensors, self._states(), strict=True) if name in state]

    def _decay(self, name: str, group: dict[str, Any]) -> float | None:
        """Return the decay of a moment per step; None for a count of steps, or what grows with it."""
        beta1, beta2 = group.get("betas", (0.0, 0.0))
        mean = group.get("rho", group.get("alpha", 0.0))  # Adadelta's, RMSprop's
        decays = {"exp_avg": beta1, "exp_avg_sq": beta2, "max_exp_avg_sq": beta2, "exp_inf": beta2}
        decays |= {"momentum_buffer": group.get("momentum", 0.0), "square_avg": mean, "grad_avg": mean}
        decays |= {"acc_delta": mean, "prev": 0.0, "step_size": 0.0}
        return None if name in (STEPS, "sum", *FACTORS) else float(decays[name])

    def _change(self, vector: Tensor, change: Callable[[Layout, Tensor], None]) -> None:
        layouts = self._layouts()
        if vector.shape != (sum(layout.numel for layout in layouts.values()),):
            raise ValueError(f"expected a vector of {self.numel} moments, got shape {tuple(vector.shape)}")
        before = {
            t: {name: state[name].clone() for name in _known(state)} for t, state in (self._initial or {}).items()
        }
        at = 0
        for layout in layouts.values():
            change(layout, vector[at : at + layout.numel])
            at += layout.numel
        self._keep_changed(before)
        self._bound()

    def _keep_changed(self, before: dict[Tensor, dict[str, Tensor]]) -> None:
        """Give the optimizer the state of tensors without a step that has changed.

        It makes the rest itself at the first step, which need not be a step from zeros (SGD with dampening).
        """
        initial = self._initial or {}
        for t, known in before.items():
            if any(not torch.equal(initial[t][name], value) for name, value in known.items()):
                self.optimizer.state[t].update(initial.pop(t))

    def _layouts(self) -> dict[str, Layout]:
        """{name: tensors of the weights that have it}, in the order of the vector."""
        states = self._states()
        found = {name: [state[name] for state in states if isinstance(state.get(name), Tensor)] for name in _ORDER}
        found = {name: tensors for name, tensors in found.items() if tensors}
        made = {name: layout.tensors for name, layout in self._made.items()}
        if list(map(_identities, found.items())) != list(map(_identities, made.items())):
            self._made = {name: Layout(tensors) for name, tensors in found.items()}
        return self._made

    def _states(self) -> list[dict[str, Any]]:
        """State of each weight: the optimizer's, or the initial one, kept here, of a weight that has had no step.

        Raises:
            ValueError: As for `check`.
        """
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

        Raises:
            ValueError: As for `check`.
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
                kept = [*_known(state), *(LEFT & state.keys())]
                twin.state[zero].update({name: state[name].clone() for name in kept})
        _step(type(self.optimizer), twin)
        initial = {t: twin.state.get(zero, {}) for t, zero in zeros.items()}
        for state in initial.values():
            for name in AT_FIRST.keys() & _known(state):
                state[name].fill_(AT_FIRST[name])
        return initial

    def _bound(self) -> None:
        """Raise v to m^2 / C, and other squares to 0."""
        for group in self.optimizer.param_groups:
            betas = group.get("betas")
            for t in group["params"]:
                state: dict[str, Any] = self.optimizer.state.get(t, {})
                bounded = {"exp_avg", "exp_avg_sq"} <= state.keys() and (largest := _largest_ratio(betas)) is not None
                for name in SQUARES:
                    if isinstance(state.get(name), Tensor) and not (bounded and name == "exp_avg_sq"):
                        state[name].clamp_(min=0)
                if bounded:
                    v = state["exp_avg_sq"]
                    torch.maximum(v, state["exp_avg"].square().div_(largest).to(v.dtype), out=v)
                elif {"exp_avg", "exp_inf"} <= state.keys() and (steepest := _largest_of_maximum(betas)) is not None:
                    u = state["exp_inf"]
                    torch.maximum(u, state["exp_avg"].abs().div_(steepest).to(u.dtype), out=u)


def _known(state: Mapping[str, Any]) -> list[str]:
    """Return the names of the known moments in the state of a tensor."""
    return [name for name in _ORDER if isinstance(state.get(name), Tensor)]


def _identities(named: tuple[str, list[Tensor]]) -> tuple[str, list[int]]:
    name, tensors = named
    return name, [id(t) for t in tensors]


def _step(kind: type[torch.optim.Optimizer], twin: torch.optim.Optimizer) -> None:
    """Let a twin of an optimizer take its first step, and check the state that it has made.

    Raises:
        ValueError: It has state that is not known, or takes no step.
    """
    refused = f"the moments of {kind.__name__} cannot be averaged ({{}}): choose moments='local'"
    try:
        kind.step(twin)  # not the instance's: a learning rate scheduler may have replaced that
    except (TypeError, RuntimeError, KeyError) as error:
        raise ValueError(refused.format(f"it takes no step on zeros: {error}")) from error
    made = {name for state in twin.state.values() for name, value in state.items() if isinstance(value, Tensor)}
    if unknown := sorted(made - {*_ORDER, *LEFT}):
        raise ValueError(refused.format(f"its state {', '.join(unknown)} is not known"))


def _largest_ratio(betas: Any) -> float | None:
    """Return C, the largest m^2 / v of Adam; None if there is no bound."""
    if not isinstance(betas, tuple) or len(betas) != 2:
        return None
    beta1, beta2 = (float(beta) for beta in betas)
    if not beta1**2 < beta2 < 1:
        return None
    return SLACK * (1 - beta1) ** 2 / ((1 - beta2) * (1 - beta1**2 / beta2))


def _largest_of_maximum(betas: Any) -> float | None:
    """Return c, the largest |m| / u of Adamax; None if there is no bound."""
    if not isinstance(betas, tuple) or len(betas) != 2:
        return None
    beta1, beta2 = (float(beta) for beta in betas)
    return SLACK * (1 - beta1) / (1 - beta1 / beta2) if beta1 < beta2 else None


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
