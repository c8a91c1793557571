"""Any strategy in a loop of accelerate, in place of its LocalSGD.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with local(accelerator, model, optimizer, KAVG(8)) as learner:
        for x, y in loader:
            accelerator.backward(loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()

accelerate finds rank and size in the process group of the launch: its samplers, trackers, `gather` and `reduce` are
right as they are. A model that it has wrapped in DDP stays in `no_sync()` during the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedType
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from murmur.core.errors import SettingError
from murmur.core.learner import Strategy
from murmur.integrations.base import Session, check_processes, saved_learners
from murmur.integrations.rendezvous import understand_launches

understand_launches()  # accelerate makes the process group itself, with the first Accelerator or PartialState
SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM, DistributedType.XLA)


@contextmanager
def local(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    strategy: Strategy,
    out: Path | str | None = None,
    total_steps: int | None = None,
    **plan: Any,
) -> Iterator[Local]:
    """Let a strategy take the steps of a prepared optimizer inside the block; the model then is the consensus.

    `save_state`, `save_model` and `get_state_dict` of the accelerator give the consensus inside the block, and
    `save_state` also the state of each learner, with which `load_state` resumes inside the block, before the first
    step.

    Args:
        accelerator: Accelerator of the loop.
        model: Model, as `accelerator.prepare` has returned it.
        optimizer: Optimizer of all its trainable parameters, as `accelerator.prepare` has returned it.
        strategy: Strategy, such as `KAVG(8)`.
        out: Folder for the records, as in `murmur.join`.
        total_steps: Steps of all learners together, for strategies that follow the used fraction of the budget.
        plan: Further fields of `murmur.Plan`.

    Raises:
        SettingError: accelerate shards the model, or has not found the learners of the launch, or some learners of the
            strategy only serve the others.
    """
    check_accelerator(accelerator, "Accelerator(cpu=True)")
    module = accelerator.unwrap_model(model, keep_torch_compile=False)
    session = Session(strategy, out, **plan)
    learner = Local(accelerator, session, module)
    with model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext(), session.ending():
        session.begin(module, plain(optimizer), total_steps=total_steps, clip=learner.take_clip)
        with learner.saving():
            bind_scaler(optimizer)
            yield learner
    bind_scaler(optimizer)


class Local:
    """One learner of a loop of accelerate.

    Attributes:
        session: Joined loop, whose `me` is what `murmur.join` gives.
    """

    def __init__(self, accelerator: Accelerator, session: Session, module: nn.Module) -> None:
        self.session = session
        self._accelerator, self._module = accelerator, module
        self._plain_state_dict: Callable[..., dict[str, Any]] = accelerator.get_state_dict
        self._plain_save: Callable[..., Path] = accelerator.save_state
        self._plain_load: Callable[..., None] = accelerator.load_state
        self._plain_clip: Callable[..., Tensor] = accelerator.clip_grad_norm_
        self._loaded = Path()
        self._most_norm: float | None = None  # of the gradient of the step to come

    @contextmanager
    def consensus(self) -> Iterator[nn.Module]:
        """Set the model to the consensus inside the block, for evaluation; all learners enter and leave it together."""
        with self.session.consensus():
            yield self._module

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Give the accelerator methods that save and load the state of learners, inside the block."""
        methods = {"get_state_dict": self._state_dict, "save_state": self._save, "load_state": self._load}
        methods["clip_grad_norm_"] = self._clip
        with ExitStack() as stack:
            stack.callback(self._accelerator.register_load_state_pre_hook(self._before_load).remove)
            for name, method in methods.items():
                setattr(self._accelerator, name, method)
                stack.callback(delattr, self._accelerator, name)
            yield

    def _state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Return the consensus. One learner may ask alone, as programs save on the main process alone.

        Names are those of the bare model, so that one process can load what several have saved.
        """
        if self._accelerator.unwrap_model(model, keep_torch_compile=False) is not self._module:
            return self._plain_state_dict(model, unwrap)
        assert self.session.me is not None
        with self.session.me.consensus():
            return deepcopy(self._module.state_dict())

    def _clip(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Tensor:
        """Return the norm of this learner's gradient; the strategy clips the gradient of its step, as DDP the mean."""
        clipped = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        joined = {id(p) for p in self._module.parameters() if p.requires_grad}
        if norm_type != 2 or not joined <= {id(p) for p in clipped}:
            return self._plain_clip(clipped, max_norm, norm_type)
        self._most_norm = max_norm
        return self._plain_clip(clipped, float("inf"))

    def take_clip(self) -> float | None:
        most_norm, self._most_norm = self._most_norm, None
        return most_norm

    def _save(self, *given: Any, **named: Any) -> Path:
        with self.session.together():
            folder = self._plain_save(*given, **named)
            self.session.save(Path(folder))
        return folder

    def _before_load(self, models: list[nn.Module], folder: str) -> None:
        self._loaded = Path(folder)
        if saved_learners(self._loaded) is not None:
            bare = [self._accelerator.unwrap_model(model, keep_torch_compile=False) for model in models]
            models[:] = [b if b is self._module else m for m, b in zip(models, bare, strict=True)]

    def _load(self, *given: Any, **named: Any) -> None:
        self._plain_load(*given, **named)
        self.session.load(self._loaded)


def check_accelerator(accelerator: Accelerator, on_cpu: str) -> None:
    """Check that accelerate runs as all learners of the launch, and leaves models whole.

    Raises:
        SettingError: It does not; `on_cpu` is the mend for computers without an accelerator.
    """
    if accelerator.distributed_type in SHARDED:
        raise SettingError(
            f"accelerate shards or replaces the model ({accelerator.distributed_type.value}): configure it for plain"
            " data parallelism, in which each learner has the whole model"
        )
    remedy = f"start with murmur launch or torchrun, import murmur's integration first, and on a CPU give {on_cpu}"
    check_processes(accelerator.num_processes, "accelerate", remedy)


def plain(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer inside accelerate's."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def bind_scaler(optimizer: torch.optim.Optimizer) -> None:
    """Let a loss scaler call the present `step` of an optimizer: accelerate keeps the one that it found at first."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer.__setstate__({})
        optimizer = optimizer.optimizer
