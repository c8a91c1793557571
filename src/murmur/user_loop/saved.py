"""State of a joined loop, as it is saved and resumed.

    {"weights": (P,), "steps": 40, ..., "optimizer": ({...},), "round": (None,), ...}

`torch.distributed.checkpoint` loads into the keys and shapes of a given state, and those of a loop that has just begun
lack most of it. Parts whose form changes are therefore the one element of a tuple, which it saves and loads as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from murmur.core.shards import as_shard_of, is_sharded, own_part
from murmur.user_loop.consensus import Answers
from murmur.user_loop.origin import origin_of
from murmur.user_loop.rounds import RoundSource

PARTS = (  # that each state has
    *("weights", "optimizer", "origin", "steps", "seconds"),
    *("buffers", "strategy", "round", "learners", "minibatches", "claims", "counters"),
)


def state_of(source: RoundSource, answers: Answers) -> dict[str, Any]:
    state = {
        "optimizer": _own_parts(source.local_optimizer.optimizer.state_dict()),
        "origin": origin_of(source),
        "steps": source.steps,
        "seconds": source.recorder.clock.seconds,
        **source.state(answers.own_buffers()),
    }
    return {name: x if isinstance(x, Tensor | int | float) else (x,) for name, x in state.items()}


def _own_parts(state: Any) -> Any:
    """Return a copy of the state of an optimizer, with this process's parts of sharded tensors."""
    if isinstance(state, dict):
        return {name: _own_parts(value) for name, value in state.items()}
    if isinstance(state, list):
        return [_own_parts(value) for value in state]
    return own_part(state).clone() if isinstance(state, Tensor) and is_sharded(state) else deepcopy(state)


def _load(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    optimizer.load_state_dict(deepcopy(state))
    for p in (p for group in optimizer.param_groups for p in group["params"] if is_sharded(p)):
        found: dict[str, Any] = optimizer.state.get(p, {})
        for name, x in found.items():
            if isinstance(x, Tensor) and not is_sharded(x) and x.shape == own_part(p).shape:
                found[name] = as_shard_of(p, x)


def check_state(state: Mapping[str, Any], shard: tuple[int, int]) -> None:
    """Raise ValueError if this is none of the states of `state_of`, or not that of shard i of n, (i, n)."""
    missing = [part for part in PARTS if part not in state]
    if missing:
        raise ValueError(
            f"the state has no {missing[0]}, but {', '.join(sorted(map(str, state))) or 'nothing'}: give that of"
            " state_dict()"
        )
    saved = tuple(*state.get("shard", ((0, 1),)))
    if saved != shard:
        raise ValueError(
            "the state is of shard {} of {}, and this process has shard {} of {}: each process of a learner loads the"
            " state that it has saved, with as many processes".format(*saved, *shard)
        )


def resume(source: RoundSource, state: Mapping[str, Any], step: Callable[[], None]) -> None:
    """Resume from a state. `step` lets the strategy repeat a step of a round."""
    found = {name: x[0] if isinstance(x, tuple) else x for name, x in state.items()}
    optimizer, own = source.local_optimizer.optimizer, dict(found["optimizer"])
    source.recorder.clock.before = float(found["seconds"])
    _load(optimizer, own)
    if source.load(found, step):
        _load(optimizer, own)  # its moments belong to the saved moment
    source.counters.steps = int(found["steps"]) - source.learner.steps
