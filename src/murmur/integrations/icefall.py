"""Strategies in the training programs of icefall, in which `train.py` has a loop of its own.

    @trains(KAVG(8))                         above `def run(rank, world_size, args)`, in place of setup_dist
    join(model, optimizer, params)           before the first epoch, in place of DDP
    @on_consensus                            above `def compute_validation_loss`
    @saves                                   above `def save_checkpoint`

`optimizer.step()` and `scaler.step(optimizer)` stay: from `join` on, they are the strategy's.
"""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from murmur.core.learner import Strategy
from murmur.integrations.base import Session, saved_learners, start_default_group, start_group
from murmur.worlds.process.environment import Place, add_variables

P = ParamSpec("P")
T = TypeVar("T")
PORT = 12354  # of icefall, without --master-port
KEPT = 30  # states that stay, as icefall keeps checkpoints without --keep-last-k


@dataclass(frozen=True)
class _Training:
    """One call of `run`; `stack` holds what ends with it."""

    session: Session
    place: Place | None
    total_steps: int | None
    clip: float | None
    stack: ExitStack = field(default_factory=ExitStack)


_TRAINING: ContextVar[_Training] = ContextVar("training of icefall")


def trains(
    strategy: Strategy,
    out: Path | str | None = None,
    total_steps: int | None = None,
    clip: float | None = None,
    **plan: Any,
) -> Callable[[Callable[[int, int, Any], T]], Callable[[int, int, Any], T]]:
    """Decorate `run(rank, world_size, args)`, which then trains by a strategy, and gets the rank and size of a launch.

    Without a launch (`murmur launch`, torchrun, srun, mpirun) they are those that `mp.spawn` gives. The default process
    group is there in `run`, which must not make one (`setup_dist`).

    Args:
        strategy: Strategy, such as `KAVG(8)`.
        out: Folder for the records, as in `murmur.join`.
        total_steps: Steps of all learners together, for strategies that ask for them.
        clip: Largest norm of the gradient of a step, which is the mean one where the strategy averages gradients; None:
            no limit. It is for programs that call `clip_grad_norm_`; ScaledAdam clips by itself.
        plan: Other fields of `murmur.Plan`.
    """

    def decorated(run: Callable[[int, int, Any], T]) -> Callable[[int, int, Any], T]:
        @wraps(run)
        def trained(rank: int, world_size: int, args: Any) -> T:
            place = start_group() or _spawned(rank, world_size, args)
            now = _Training(Session(strategy, out, **plan), place, total_steps, clip)
            token = _TRAINING.set(now)
            now.stack.callback(_TRAINING.reset, token)
            with now.stack:
                try:
                    result = run(*((place.rank, place.size) if place else (0, 1)), args)
                except BaseException as error:
                    now.session.fail(error)
                    raise
                now.session.end()
                return result

        return trained

    return decorated


def _spawned(rank: int, world_size: int, args: Any) -> Place | None:
    """Make the group of processes that `mp.spawn` has started on this host."""
    if world_size == 1:
        return None
    port = getattr(args, "master_port", None) or PORT
    place = Place(rank, world_size, rank, "127.0.0.1", port, local_size=world_size, store="learner 0")
    add_variables(place)
    start_default_group(place)
    return place


def join(model: nn.Module, optimizer: torch.optim.Optimizer, params: Any) -> None:
    """Join all learners, in place of DDP, after a checkpoint has been loaded and before the first step.

    With `params.batch_idx_train`, from a checkpoint, each learner resumes the state that it has saved beside it.

    Raises:
        LookupError: This is not inside a function that `trains` decorates.
    """
    now = _TRAINING.get()
    now.session.begin(model, optimizer, now.place, now.total_steps, clip=now.clip)
    if params.batch_idx_train > 0:
        now.session.load(_states(params))


def on_consensus(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that all learners call together: inside it the model is the consensus."""

    @wraps(function)
    def called(*arguments: P.args, **named: P.kwargs) -> T:
        now = _TRAINING.get(None)
        if now is None:
            return function(*arguments, **named)
        with now.session.consensus():
            return function(*arguments, **named)

    return called


def saves(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that saves a checkpoint, with an argument `params`, which all learners call together.

    It saves the consensus. Each learner then saves its own state in `params.exp_dir`, in a folder with the number
    `params.batch_idx_train`. The last `params.keep_last_k` of these stay.
    """

    @wraps(function)
    def called(*arguments: P.args, **named: P.kwargs) -> T:
        now = _TRAINING.get(None)
        if now is None or now.session.me is None:
            return function(*arguments, **named)
        params = inspect.signature(function).bind(*arguments, **named).arguments["params"]
        with now.session.consensus():
            result = function(*arguments, **named)
            now.session.save(_states(params))
        if now.session.me.rank == 0:
            for old in _saved(params.exp_dir)[: -getattr(params, "keep_last_k", KEPT)]:
                shutil.rmtree(old)
        return result

    return called


def newest(exp_dir: Path | str) -> int:
    """Return the largest batch number of a `checkpoint-N.pt` with the states of all learners; 0: there is none.

    A program that is started again by its launcher sets `params.start_batch` to it.
    """
    numbers = [_number(folder) for folder in _saved(exp_dir) if saved_learners(folder)]
    numbers = [number for number in numbers if (Path(exp_dir) / f"checkpoint-{number}.pt").exists()]
    return max(numbers, default=0)


def sampler_state(state: Mapping[str, Any], world_size: int) -> dict[str, Any]:
    """Return the state of a lhotse sampler at the same position in the epoch, for another number of learners.

    lhotse refuses the state of another number. The rest of the epoch has the cuts that are left if the sampler has
    `sync_buckets=False`, since else the order of batches depends on the number of learners. Where the numbers do not
    divide, some cuts are read twice, and none is left out.
    """
    moved, former = deepcopy(dict(state)), int(state["world_size"])
    moved["world_size"] = world_size
    for epoch in moved["diagnostics"]["stats_per_epoch"].values():
        for name in ("kept_batches", "discarded_batches"):
            epoch[name] = epoch[name] * former // world_size
    return moved


def _states(params: Any) -> Path:
    return Path(params.exp_dir) / f"learners-{params.batch_idx_train}"


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("learners-"))


def _saved(exp_dir: Path | str) -> list[Path]:
    found = [path for path in Path(exp_dir).glob("learners-*") if re.fullmatch(r"learners-\d+", path.name)]
    return sorted(found, key=_number)
