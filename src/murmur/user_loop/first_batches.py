"""Learners that read the same data are told so in their first steps.

Training on the same data everywhere is as slow as on one machine and gives the model of one: no figure shows the
mistake. The inputs of the model's calls in each of the first steps are digested, and a counter of the group for each
digest tells a learner that another one had the same before. No learner waits for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn

from murmur.core.errors import SettingError, nearest
from murmur.core.group import Group
from murmur.core.torch_private import is_called_through_ddp, is_transformed
from murmur.user_loop.loop import telling_who_is_lost

log = logging.getLogger(__name__)
TOLD, DISJOINT, SAME = "told", "disjoint", "same"
STEPS = 3
MOST_ELEMENTS = 1 << 14  # of a tensor, evenly spaced
ONE = 1 << 32  # what a learner adds to a counter beside its rank


class FirstBatches:
    """Comparison of the data that learners read in their first steps.

    Args:
        rule: "told", "disjoint" or "same".

    Raises:
        SettingError: The rule is not known.
    """

    def __init__(self, rule: str) -> None:
        if rule not in (TOLD, DISJOINT, SAME):
            raise SettingError(f"data={rule!r} is not known{nearest(rule, (TOLD, DISJOINT, SAME))}")
        self.rule = rule
        self._calls, self._steps = Calls(), 0

    def watch(self, model: nn.Module) -> Callable[[], None]:
        """Look at the inputs of a model; return a function that ends this."""
        if self.rule == SAME:
            return lambda: None
        self._calls.begin()
        hooks = [
            part.register_forward_pre_hook(self._calls, with_kwargs=True)
            for part in _called(model)
            if not isinstance(part, torch.jit.ScriptModule)  # which takes no hooks
        ]

        def end() -> None:
            self._calls.end()
            for hook in hooks:
                hook.remove()

        return end

    def step(self, group: Group, gathered: Callable[[str | None], Sequence[str | None]]) -> None:
        """Compare the inputs since the latest step with the other learners'.

        Args:
            group: All learners.
            gathered: Returns the digests of all processes of this learner, which compares them here.

        Raises:
            PeerLost: The store is gone.
            SettingError: They are the same, and the rule is "disjoint".
        """
        digest = self._calls.take()
        self._steps += 1
        if self._steps > STEPS:
            return
        if self._steps == STEPS:
            # The hook stays: its removal would compile a model anew that torch.compile has compiled.
            self._calls.end()
        for each in gathered(digest):
            if each is not None:
                with telling_who_is_lost(group.rank):
                    self._compare(group, each)

    def _compare(self, group: Group, digest: str) -> None:
        total = group.count(f"data of step {self._steps}: {digest}", ONE + group.rank)
        others, ranks = total // ONE - 1, total % ONE - group.rank
        if others == 0:
            return
        whose = f"learner {ranks}" if others == 1 else f"{others} other learners"
        if others == 1 and ranks == group.rank:
            whose = "another process of it"
        found = (
            f"learner {group.rank} has read the same data as {whose} in step {self._steps}: give each its part, by"
            " sampler=me.sampler(dataset), or rank=me.split.rank, world_size=me.split.world_size"
        )
        if self.rule == DISJOINT:
            raise SettingError(f"{found}; or join with data={SAME!r}")
        if group.count("same data is told", 1) == 1:
            log.warning("%s; if that is intended, join with data=%r", found, SAME)


class Calls:
    """Inputs of a model's calls in training mode since the latest step: a hook before its forward pass."""

    def __init__(self) -> None:
        self._samples: list[Tensor] | None = None  # None: not looked at

    def __reduce__(self) -> tuple[type[Calls], tuple[()]]:
        return Calls, ()  # in a copy of the model, or a file

    def begin(self) -> None:
        self._samples = []

    def end(self) -> None:
        self._samples = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if torch.compiler.is_dynamo_compiling() or self._samples is None:
            return
        if is_called_through_ddp():
            raise RuntimeError(
                "the joined model is called inside DistributedDataParallel, which averages gradients itself: call the"
                " model alone"
            )
        if module.training:
            self._samples += [_sample(x) for x in _tensors((args, kwargs))]

    def take(self) -> str | None:
        """Return a digest of the inputs since the latest call; None if there were none."""
        if not self._samples:
            return None
        digest = blake2b(digest_size=16)
        for x in self._samples:
            digest.update(f"{x.dtype} {tuple(x.shape)}".encode())
            digest.update(x.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        self._samples.clear()
        return digest.hexdigest()


def _sample(x: Tensor) -> Tensor:
    """Return evenly spaced elements, which change no more when the tensor does."""
    flat = x.detach().flatten()
    return flat[:: max(1, flat.numel() // MOST_ELEMENTS)].clone()


def _tensors(x: Any) -> Iterator[Tensor]:
    """Yield the dense tensors in nested containers."""
    if isinstance(x, Tensor):
        plain = type(x) in (Tensor, nn.Parameter) and x.layout == torch.strided and x.device.type != "meta"
        if plain and not (x.is_quantized or x.is_nested or is_transformed(x)):
            yield torch.view_as_real(x) if x.is_complex() else x
    elif isinstance(x, Mapping):
        for part in x.values():
            yield from _tensors(part)
    elif isinstance(x, list | tuple):
        for part in x:
            yield from _tensors(part)


def _called(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules that a loop can call: the parts of a container that cannot be called itself."""
    if type(model).forward is not nn.Module.forward or "forward" in vars(model):  # as of a compiled one
        return [model]
    return [part for child in model.children() for part in _called(child)]
