"""Base of all integrations: a default process group for the framework, and one joined loop inside its training.

A framework asks `torch.distributed` for rank and size, and reduces its metrics there. Gradients and weights do not go
through that group, but through the world of `murmur.join`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from murmur.core.errors import DamagedCheckpoint, SettingError
from murmur.core.facts import layers, training_learners
from murmur.core.learner import Strategy
from murmur.core.whole_files import replacing
from murmur.integrations.rendezvous import store_of_default_group
from murmur.user_loop.joined import Joined, Plan, join
from murmur.user_loop.routed import Clip, Samples, routed
from murmur.worlds.process.environment import Place, add_variables, place_of

NO_STATE = "is not the state of a learner, or is damaged: delete its folder, and resume an older checkpoint"


def start_default_group(place: Place, timeout_seconds: float = 1800.0) -> None:
    """Make the default group of `torch.distributed` (gloo) over the store of a launch, unless there is one.

    Its collectives are the framework's. They do not tolerate the loss of a learner: after one, restart the launch.

    Raises:
        ConnectionError: No store answers.
    """
    if dist.is_initialized():
        return
    store, seconds = store_of_default_group(place), timedelta(seconds=timeout_seconds)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size, timeout=seconds)


def start_group() -> Place | None:
    """Make the default group of the launch that started this process, and return the place in it; None: no launch.

    Torchrun's variables are set then, also under srun and mpirun, for frameworks that read rank and size there.
    """
    place = place_of()
    if place is None:
        return None
    add_variables(place)
    place = place_of()
    assert place is not None
    start_default_group(place)
    return place


def check_processes(found: int, framework: str, remedy: str) -> None:
    """Raise SettingError if a framework has found another number of processes than the launch has learners."""
    place = place_of()
    size = place.size if place else 1
    if found != size:
        raise SettingError(
            f"{framework} runs as one of {found} processes, but the launch has {size} learners: {remedy}"
        )


def take_from_first(tensors: Iterable[Tensor]) -> None:
    """Set the tensors of all learners to those of learner 0, through the default group. A collective."""
    with torch.no_grad():
        for tensor in tensors:
            whole = tensor.detach().contiguous()
            dist.broadcast(whole, src=0)
            tensor.copy_(whole)


def check_framework_can_run(strategy: Strategy, learners: int) -> None:
    """Check that no learner waits in its step for a later step of another one: a framework lets all meet in between.

    Raises:
        SettingError: Some learners would only serve the others, or follow the leader of a super-learner.
    """
    serve = training_learners(strategy, learners) < learners
    follow = any(getattr(layer, "node_size", 1) > 1 for layer in layers(strategy))
    if learners > 1 and (serve or follow):
        raise SettingError(
            f"{type(strategy).__name__} has learners that {'serve others' if serve else 'follow a leader'} and wait in"
            " a step for a later one, but a framework evaluates on all learners after the same step: choose a strategy"
            " without servers and super-learners"
        )


class Session:
    """One joined loop inside a framework's training, between `begin` and `end` or `fail`.

    Args:
        strategy: Strategy, such as `KAVG(8)`.
        out: Folder for the records, as in `murmur.join`.
        plan: Fields of `murmur.Plan` other than `total_steps`.

    Attributes:
        me: The joined loop; None outside training.
        lent: True while the model is the consensus.
    """

    def __init__(self, strategy: Strategy, out: Path | str | None = None, **plan: Any) -> None:
        self.strategy, self.out, self.plan = strategy, out, plan
        self._stack = ExitStack()
        self.me: Joined | None = None
        self.lent = False

    def begin(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        place: Place | None = None,
        total_steps: int | None = None,
        samples: Samples = 1.0,
        loss: Callable[[], object] = lambda: None,
        clip: Clip = None,
    ) -> Joined:
        """Join; every `optimizer.step()` is the strategy's until `end`. For the last three see `murmur.routed`.

        Raises:
            SettingError: By `check_framework_can_run`.
        """
        plan = Plan(total_steps=total_steps, **self.plan)
        me = join(self.strategy, model, optimizer, plan, seat=place, out=self.out)
        check_framework_can_run(self.strategy, me.size)
        self.me = self._stack.enter_context(me)
        self._stack.enter_context(routed(self.me, samples, clip, loss))
        return self.me

    def end(self) -> None:
        """Wait for the others; the model is then the consensus."""
        try:
            self._stack.close()
        finally:
            self.me = None

    def fail(self, error: BaseException) -> None:
        """Leave after an error, and tell the others."""
        self._stack.__exit__(type(error), error, error.__traceback__)
        self.me = None

    @contextmanager
    def ending(self) -> Iterator[None]:
        """End the loop at the end of the block, or leave it after an error there."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise
        self.end()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Context that all learners enter and leave together, so that none takes a step while another one is in it."""
        self.meet()
        yield
        self.meet()

    def meet(self) -> None:
        """Wait until all learners are here."""
        if self.me is not None and self.me.size > 1:
            dist.barrier()

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """Set the model to the same consensus on all learners, inside a block that they enter and leave together.

        Outside training, and inside such a block, the model stays as it is.
        """
        if self.me is None or self.lent:
            yield
            return
        with self.together(), self.me.consensus() as model:
            if self.me.size > 1:  # averaging beside may be between two learners when only one of them has been asked
                take_from_first(p for p in model.parameters() if p.requires_grad)
            self.lent = True
            try:
                yield
            finally:
                self.lent = False

    def save(self, folder: Path) -> None:
        """Save the state of this learner beside the framework's checkpoint."""
        assert self.me is not None
        folder.mkdir(parents=True, exist_ok=True)
        if self.me.rank == 0:
            for path, size in _states(folder):
                if size != self.me.size:  # of a run with another number, whose checkpoint is being replaced
                    path.unlink()
        name = folder / _name(self.me.rank, self.me.size)
        with replacing(name) as path, path.open("wb") as file:  # torch.save refuses names that begin with a dot
            torch.save(self.me.state_dict(), file)

    def load(self, folder: Path) -> bool:
        """Resume this learner before its first step; return False if the folder has not the states of all learners.

        With another number of learners, each takes the mean of the former ones' weights, and the rest of the state of
        one of them; the strategy begins a new round.

        Raises:
            DamagedCheckpoint: A file of the folder is no such state.
        """
        assert self.me is not None
        former, me = saved_learners(folder), self.me
        if former is None:
            return False
        names = [folder / _name(rank, former) for rank in range(former)]
        me.load_state_dict(_read(names[me.rank]) if former == me.size else _regrouped(names, me.rank))
        return True


def saved_learners(folder: Path) -> int | None:
    """Return the number of learners that have saved a checkpoint; None if there is none with the states of all."""
    saved = Counter(size for _, size in _states(folder))
    return max((size for size, files in saved.items() if files == size), default=None)


def _name(rank: int, size: int) -> str:
    return f"learner-{rank}-of-{size}.pt"


def _states(folder: Path) -> list[tuple[Path, int]]:
    found = ((path, re.fullmatch(r"learner-\d+-of-(\d+)\.pt", path.name)) for path in folder.glob("learner-*"))
    return [(path, int(match[1])) for path, match in found if match]


def _read(path: Path) -> dict[str, Any]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # of a reader that raises errors of many kinds
        raise DamagedCheckpoint(f"{path} {NO_STATE}") from error
    if not isinstance(state, dict) or not isinstance(state.get("weights"), Tensor):
        raise DamagedCheckpoint(f"{path} {NO_STATE}")
    return state


def _regrouped(names: Sequence[Path], rank: int) -> dict[str, Any]:
    weights = [_read(path)["weights"].double() for path in names]
    state = _read(names[rank % len(names)])
    return {**state, "weights": torch.stack(weights).mean(0).to(state["weights"].dtype), "round": None}
