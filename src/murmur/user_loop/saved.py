"""State of a joined loop, as it is saved and resumed.

    {"weights": (P,), "steps": 40, ..., "optimizer": ({...},), "round": (None,), ...}

`torch.distributed.checkpoint` loads into the keys and shapes of a given state, and those of a loop that has just begun
lack most of it. Parts whose form changes are therefore the one element of a tuple, which it saves and loads as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from torch import Tensor

from murmur.user_loop.consensus import Answers
from murmur.user_loop.origin import origin_of
from murmur.user_loop.rounds import RoundSource


def state_of(source: RoundSource, answers: Answers) -> dict[str, Any]:
    state = {
        "optimizer": deepcopy(source.local_optimizer.optimizer.state_dict()),
        "origin": origin_of(source),
        "steps": source.steps,
        "seconds": source.recorder.clock.seconds,
        **source.state(answers.own_buffers()),
    }
    return {name: x if isinstance(x, Tensor | int | float) else (x,) for name, x in state.items()}


def check_state(state: Mapping[str, Any]) -> None:
    """Raise ValueError if this is none of the states of `state_of`."""
    if "weights" not in state:
        raise ValueError(f"the state has no weights, but {', '.join(sorted(state))}: give that of state_dict()")


def resume(source: RoundSource, state: Mapping[str, Any], step: Callable[[], None]) -> None:
    """Resume from a state. `step` lets the strategy repeat a step of a round."""
    found = {name: x[0] if isinstance(x, tuple) else x for name, x in state.items()}
    optimizer, own = source.local_optimizer.optimizer, dict(found["optimizer"])
    source.recorder.clock.before = float(found["seconds"])
    optimizer.load_state_dict(deepcopy(own))
    if source.load(found, step):
        optimizer.load_state_dict(deepcopy(own))  # its moments belong to the saved moment
    source.counters.steps = int(found["steps"]) - source.learner.steps
