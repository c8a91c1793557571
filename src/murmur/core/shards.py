"""Tensors of which this process holds a shard: the DTensors of `torch.distributed.tensor`, as FSDP2 makes them.

They are known by their method `to_local`, so that PyTorch's package for them is not imported here.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor


def is_sharded(t: Tensor) -> bool:
    return hasattr(t, "to_local")


def own_part(t: Tensor) -> Tensor:
    """Return the elements of a tensor that this process holds, in the same memory and without a gradient."""
    if not is_sharded(t):
        return t.detach()
    with torch.no_grad():
        return cast(Tensor, cast(Any, t).to_local()).detach()


def as_shard_of(t: Tensor, part: Tensor) -> Tensor:
    """Return a part of the shape of `own_part(t)` as a tensor of the kind of t."""
    if not is_sharded(t):
        return part
    whole = cast(Any, t)
    made = type(whole).from_local(part, whole.device_mesh, whole.placements, shape=whole.shape, stride=whole.stride())
    return cast(Tensor, made)
