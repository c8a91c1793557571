"""Affine maps that precondition their weight gradients in the backward pass.

    y = W x + b,   dW = sum_n dy_n [x_n, 1]'   ->   gamma_o gamma_i (I - Wo'Wo) dW (I - Wi'Wi)

Wi, Wo: the factors of the Fisher estimates of inputs (a one appended for the bias) and of output derivatives; because
X^ = X - X W'W is linear in X, preconditioning the sum is preconditioning every frame. Few frames are preconditioned
themselves, which is cheaper.

Shapes: M rows (frames), I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from murmur.core.torch_private import DisableTorchFunction
from murmur.engine.optim.natural_gradient.fisher import FisherConfig, OnlineFisher, SampleRows

INPUTS, OUTPUTS = "in", "out"  # names of the sides in the state
SIDES = (f"{INPUTS}.", f"{OUTPUTS}.")


class TwoSides:
    """Fisher estimates of both sides of one weight matrix.

    Output derivatives are multiplied by `samples()` before they are estimated, so that they belong to the sum of the
    losses of a minibatch, not to the mean: minibatches of different sizes must agree.
    """

    def __init__(self, state: MutableMapping[str, Any], config: FisherConfig, samples: Callable[[], float]) -> None:
        self.inputs = OnlineFisher(state, INPUTS, config.rank_in, config)
        self.outputs = OnlineFisher(state, OUTPUTS, config.rank_out, config)
        self.samples = samples

    def gradient(self, X: SampleRows, dY: Tensor) -> Gradients:
        """gamma (I - Wo'Wo) dY' X (I - Wi'Wi) in the blocks of X.

        A factor of rank r is applied to N rows of D values in 2 N D r operations, since their products with it are
        known, and to the sum, dY' X, in 4 O I r. The cheaper one is taken, for rows of at least float32.
        """
        outputs = SampleRows((dY,), scale=self.samples())
        outer, inner = self.outputs.observe(outputs), self.inputs.observe(X)
        rows, wide = len(dY), X.is_wide and outputs.is_wide
        few_outputs, few_inputs = wide and rows < 2 * X.dims, wide and rows < 2 * outputs.dims
        if few_outputs:
            (dY,) = outputs.without(outer.H, outer.W).blocks
        G = product(dY, X.without(inner.H, inner.W) if few_inputs else X)
        if not few_inputs:
            _times_inner(G, inner.W)
        gamma = outer.gamma * inner.gamma
        for block in G:
            if not few_outputs:
                block.addmm_(outer.W.t(), outer.W @ block, alpha=-1)
            block.mul_(gamma)
        return G


def _times_inner(G: Gradients, W: Tensor) -> None:
    """G (I - W'W), in place."""
    parts = torch.split(W, [block.shape[1] for block in G], dim=1)
    inner = sum((block @ part.t() for block, part in zip(G, parts, strict=True)), start=W.new_zeros(()))
    for block, part in zip(G, parts, strict=True):
        block.addmm_(inner, part, alpha=-1)


Gradients = list[Tensor]  # (O, D_b) for each block of columns of X, a last one (O, 1) for the bias


def product(dY: Tensor, X: SampleRows) -> Gradients:
    """dY' X in the blocks of X, in at least float32."""
    wide = torch.float64 if dY.dtype == torch.float64 else torch.float32
    blocks = [(dY.t() @ block).to(wide) for block in X.blocks]
    if X.ones:
        # On a CPU torch sums rows three times faster this way; in low precision with another rounding.
        narrow = dY.dtype != wide
        blocks.append(dY.sum(0, dtype=wide)[:, None] if narrow else dY.t() @ dY.new_ones(dY.shape[0], 1))
    return blocks


class Affine(torch.autograd.Function):
    """x (..., I) -> x W' + b (..., O), W of any shape with O rows, with natural gradients of W and b."""

    @staticmethod
    def forward(ctx: Any, sides: TwoSides, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute y in x's precision."""
        W = weight.flatten(1).to(x.dtype)
        ctx.sides, ctx.biased = sides, bias is not None
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x, W, None if bias is None else bias.to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return plain dx, and preconditioned dW and db."""
        x, weight = ctx.saved_tensors
        # The mode has no call to replace here, and would only take time.
        with DisableTorchFunction():
            dx = dy @ weight.flatten(1).to(dy.dtype) if ctx.needs_input_grad[1] else None
            dY, X = dy.reshape(-1, dy.shape[-1]), SampleRows((x.reshape(-1, x.shape[-1]),), ctx.biased)
            G = ctx.sides.gradient(X, dY)
            dW = G[0].view(weight.shape).to(weight.dtype)
            return None, dx, dW, G[1].squeeze(1).to(weight.dtype) if ctx.biased else None
