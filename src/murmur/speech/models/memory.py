"""Memory kept between the forward and the backward pass: all activations, or only the inputs of layers.

Recomputing a layer's activations when its gradient is needed (Chen et al., "Training deep nets with sublinear memory
cost", 2016) costs one more forward pass and changes no bit: random masks are drawn again as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Kept = Literal["activations", "inputs"]  # of each layer


def through(layer: Callable[..., Tensor], kept: Kept, *inputs: Any) -> Tensor:
    """layer(*inputs), with its activations kept or computed again in the backward pass.

    Raises:
        ValueError: `kept` is neither "activations" nor "inputs".
    """
    if kept == "inputs" and torch.is_grad_enabled():
        output: Tensor = checkpoint(layer, *inputs, use_reentrant=False)
        return output
    if kept not in ("activations", "inputs"):
        raise ValueError(f"kept={kept!r}: layers keep their 'activations' or their 'inputs'")
    return layer(*inputs)
