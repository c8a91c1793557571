"""Several optimizers of one model (Muon for matrices, AdamW for the rest) that take their steps together."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor


class OptimizerList(torch.optim.Optimizer):
    """Optimizers of disjoint parameters as one, whose step is a step of each.

    It keeps nothing itself: groups of parameters and state are those of the optimizers.

    Attributes:
        optimizers: The optimizers, in the order of their steps.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        if not optimizers:
            raise ValueError("the list of optimizers is empty: give one for each trainable parameter")
        held = [id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        if len({*held}) < len(held):
            raise ValueError("a parameter is in two of the optimizers: give each to one optimizer")
        self.optimizers = list(optimizers)
        self.defaults = dict(ChainMap(*(optimizer.defaults for optimizer in optimizers)))

    def __copy__(self) -> OptimizerList:
        return OptimizerList([copy(optimizer) for optimizer in self.optimizers])

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        rest = iter(groups)
        for optimizer in self.optimizers:
            optimizer.param_groups = [next(rest) for _ in optimizer.param_groups]

    @property  # type: ignore[override]
    def state(self) -> MutableMapping[Tensor, Any]:
        return _States(self.optimizers)

    @state.setter
    def state(self, state: MutableMapping[Tensor, Any]) -> None:
        for optimizer in self.optimizers:
            optimizer.state = state  # type: ignore[assignment]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise TypeError("optimizers that step together take no closure: compute the gradients first")
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            optimizer.load_state_dict(state)


class _States(MutableMapping[Tensor, Any]):
    """State of each parameter, in the optimizer that holds it."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._of = {p: o.state for o in optimizers for group in o.param_groups for p in group["params"]}

    def __getitem__(self, p: Tensor) -> Any:
        return self._of[p][p]

    def __setitem__(self, p: Tensor, state: Any) -> None:
        self._of[p][p] = state

    def __delitem__(self, p: Tensor) -> None:
        del self._of[p][p]

    def get(self, p: Tensor, default: Any = None) -> Any:
        return self._of[p].get(p, default)  # which makes no new state, as self[p] would

    def __contains__(self, p: object) -> bool:
        return p in self._of and p in self._of[p]

    def __iter__(self) -> Iterator[Tensor]:
        return (p for p, state in self._of.items() if p in state)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def each_of(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Return the optimizers that take their steps together: one, unless it is a list."""
    return optimizer.optimizers if isinstance(optimizer, OptimizerList) else [optimizer]


def name_of(optimizer: torch.optim.Optimizer) -> str:
    return " + ".join(type(one).__qualname__ for one in each_of(optimizer))
