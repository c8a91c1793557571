"""Origin of a saved state: it fits a loop with the same kinds of strategy and optimizer, and equal shapes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from murmur.core.facts import layers
from murmur.user_loop.optimizer_list import name_of
from murmur.user_loop.rounds import RoundSource


def origin_of(source: RoundSource) -> dict[str, list[Any]]:
    """Return the kinds of strategy and optimizer, and [name, shape] of each trainable parameter."""
    trained = [[name, list(p.shape)] for name, p in source.buffers.model.named_parameters() if p.requires_grad]
    kinds = [type(layer).__name__ for layer in layers(source.strategy)]
    return {"strategy": kinds, "optimizer": [name_of(source.local_optimizer.optimizer)], "parameters": trained}


def check_origin(source: RoundSource, state: Mapping[str, Any]) -> None:
    """Raise ValueError if a state is that of another kind of strategy, optimizer or model; names the difference."""
    (there,), here = state["origin"], origin_of(source)
    for what in ("strategy", "optimizer"):
        if there[what] != here[what]:
            former, present = (" of ".join(found[what]) for found in (there, here))
            raise ValueError(
                f"the state is one of {former}, and this loop has the {what} {present}: join with the former, or begin"
                " a run with the new one from the saved model alone"
            )
    for theirs, mine in zip_longest(there["parameters"], here["parameters"]):
        if theirs is None or mine is None or theirs[1] != mine[1]:
            raise ValueError(
                f"the state is one of another model: it has {_shown(theirs)} where this loop has {_shown(mine)}; build"
                " and freeze the model as it was when the state was saved"
            )


def _shown(parameter: list[Any] | None) -> str:
    return "no further parameter" if parameter is None else f"{parameter[0]} of shape {tuple(parameter[1])}"
