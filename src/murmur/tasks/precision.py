"""Number format of a network's matrix products in training."""

from __future__ import annotations

import functools
import logging
from typing import Literal

import torch

from murmur.core.torch_private import has_fast_bfloat16

log = logging.getLogger(__name__)
Precision = Literal["float32", "bfloat16"]


def products_in(precision: Precision, kind: str) -> torch.autocast:
    """Context of a forward pass on a kind of device, such as "cpu".

    A processor without instructions for bfloat16 computes in float32: PyTorch's emulation takes several times as long.
    """
    narrow = precision == "bfloat16" and (kind != "cpu" or _fast_here())
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=narrow)


@functools.cache  # told once
def _fast_here() -> bool:
    fast = has_fast_bfloat16()
    if not fast:
        log.info("this processor has no instructions for bfloat16: products are computed in float32")
    return fast
