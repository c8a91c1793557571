"""LSTM layer as one function: input projection, recurrence, and a backward pass that keeps the gate derivatives.

    (i, f, g, o)_t = act(W_ih x_t + W_hh r_{t-1} + b_ih + b_hh)
    c_t = f c_{t-1} + i g,   h_t = o tanh c_t,   r_t = W_hr h_t

(r_t = h_t without projection; gates in torch's order.) Fused kernels hide the derivatives of the gates' inputs; with
them [W_ih, W_hh, b] is one affine layer on [x_t, r_{t-1}, 1], as in Kaldi, and its gradient can be preconditioned.

Shapes: T frames, N sequences, I inputs, H cells, R outputs (H, or fewer with projection).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from murmur.core.torch_private import DisableTorchFunction
from murmur.engine.optim.natural_gradient.affine import Gradients, TwoSides, product
from murmur.engine.optim.natural_gradient.fisher import SampleRows

sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.grad_input
IN_CACHE = 1 << 17  # number of gate values whose local derivatives are computed at once


class LstmLayer(torch.autograd.Function):
    """x (T, N, I), r_0 (N, R), c_0 (N, H) -> r (T, N, R), c (T, N, H); one direction of one layer, forwards in time."""

    @staticmethod
    def forward(ctx: Any, sides: tuple[TwoSides | None, ...], *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute r and c from x, r_0, c_0, W_ih, W_hh, b_ih, b_hh, W_hr; the last three may be None.

        `sides` belong to [W_ih, W_hh, b] and to W_hr; None gives the plain gradient.
        """
        x, r0, c0, *weights = tensors
        assert x is not None
        assert r0 is not None
        assert c0 is not None
        W_ih, W_hh, b_ih, b_hh, W_hr = (None if w is None else w.to(x.dtype) for w in weights)
        assert W_ih is not None
        assert W_hh is not None
        T, N, _ = x.shape
        flat = x.reshape(T * N, -1)
        gates = flat @ W_ih.t() if b_ih is None or b_hh is None else torch.addmm(b_ih + b_hh, flat, W_ih.t())
        gates = gates.view(T, N, -1)
        r = x.new_empty((T + 1, N, r0.shape[1]))
        c, tanh_c = x.new_empty((T + 1, N, c0.shape[1])), x.new_empty((T, N, c0.shape[1]))
        r[0], c[0] = r0, c0
        run(gates, (r, c, tanh_c), W_hh, W_hr)
        ctx.sides, ctx.biased = sides, b_ih is not None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, gates, r, c, tanh_c, *weights)
        return r[1:], c[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dr: Tensor | None, dc: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return plain dx, dr_0 and dc_0, and preconditioned gradients of the weights."""
        x, gates, r, c, tanh_c, *weights = ctx.saved_tensors
        W_ih, W_hh = weights[0].to(x.dtype), weights[1].to(x.dtype)
        W_hr = None if weights[4] is None else weights[4].to(x.dtype)
        # The mode has no call to replace here, and would only take time.
        with DisableTorchFunction():
            h = None if W_hr is None else gates[..., -tanh_c.shape[2] :] * tanh_c
            d_out, dr0, dc0 = run_back((gates, r, c, tanh_c), (dr, dc), W_hh, W_hr)
            flat = gates.flatten(0, 1)
            dx = (flat @ W_ih).view_as(x) if ctx.needs_input_grad[1] else None
            X = SampleRows((x.flatten(0, 1), r[:-1].flatten(0, 1)), ctx.biased)
            G = gradients(ctx.sides[0], X, flat)
            db = G[2].squeeze(1).to(weights[0].dtype) if ctx.biased else None
            dW_hr = None
            if h is not None and d_out is not None:
                (dW_hr,) = gradients(ctx.sides[1], SampleRows((h.flatten(0, 1),)), d_out.flatten(0, 1))
        dW = [None if g is None else g.to(weights[0].dtype) for g in (G[0], G[1], dW_hr)]
        return None, dx, dr0, dc0, dW[0], dW[1], db, None if db is None else db.clone(), dW[2]


def gradients(sides: TwoSides | None, X: SampleRows, dY: Tensor) -> Gradients:
    """Return dY' X, preconditioned if there are sides."""
    return product(dY, X) if sides is None else sides.gradient(X, dY)


def run(gates: Tensor, states: tuple[Tensor, Tensor, Tensor], W_hh: Tensor, W_hr: Tensor | None) -> None:
    """Run all frames: projected inputs in `gates` (T, N, 4H) become gates; fills r, c (T+1, ...) and tanh c (T, ...).

    tanh x = 2 sigmoid(2 x) - 1: on a CPU torch's sigmoid takes a sixth of its tanh's time. Rows of cell inputs are
    doubled beforehand, and views of all frames are taken at once: short steps take the time of their calls.
    """
    r, c, tanh_c = states
    H = c.shape[2]
    cells = slice(2 * H, 3 * H)
    gates[..., cells].mul_(2)
    W = W_hh.t().clone()
    W[:, cells].mul_(2)
    minus_one = c.new_tensor(-1.0)
    by_gate = [gate.unbind(0) for gate in torch.split(gates, H, 2)]
    rs, cs = r.unbind(0), c.unbind(0)
    frames = zip(gates.unbind(0), *by_gate, rs[:-1], rs[1:], cs[:-1], cs[1:], tanh_c.unbind(0), strict=True)
    for gate, i, f, g, o, r_before, r_now, c_before, c_now, tanh in frames:
        gate.addmm_(r_before, W).sigmoid_()
        torch.add(minus_one, g, alpha=2, out=g)
        torch.mul(f, c_before, out=c_now).addcmul_(i, g)
        torch.mul(c_now, 2, out=tanh).sigmoid_()
        torch.add(minus_one, tanh, alpha=2, out=tanh)
        if W_hr is None:
            torch.mul(o, tanh, out=r_now)
        else:
            torch.mm(o * tanh, W_hr.t(), out=r_now)


def run_back(
    saved: tuple[Tensor, Tensor, Tensor, Tensor],
    upstream: tuple[Tensor | None, Tensor | None],
    W_hh: Tensor,
    W_hr: Tensor | None,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return derivatives of r with a projection (T, N, R), of r_0 and of c_0; those of the gates' inputs (T, N, 4H)
    replace the gates, so that a graph can be traversed only once (autograd refuses a second time).
    """
    gates, r, c, tanh_c = saved
    T, N, H = tanh_c.shape
    above, cells = (None if d is None else d.unbind(0) for d in upstream)
    d_out = None if W_hr is None else torch.empty_like(r[1:])
    dr, dc = r.new_zeros((N, r.shape[2])), r.new_zeros((N, H))
    dh = dr if W_hr is None else torch.empty_like(dc)
    dc_of_gates, gates_of = dc[:, None], gates.unbind(0)
    at_once = max(1, IN_CACHE // gates[0].numel())
    for first in range((T - 1) // at_once * at_once, -1, -at_once):
        frames = slice(first, min(T, first + at_once))
        local = local_derivatives(gates[frames], c[frames], tanh_c[frames])
        for t, of_cell, forget, by_cell, by_output in zip(
            reversed(range(frames.start, frames.stop)), *map(reversed, local), strict=True
        ):
            if above is not None:
                dr.add_(above[t])
            if cells is not None:
                dc.add_(cells[t])
            if W_hr is not None and d_out is not None:
                d_out[t] = dr
                torch.mm(dr, W_hr, out=dh)
            dc.addcmul_(dh, of_cell)
            by_cell.mul_(dc_of_gates)
            by_output.mul_(dh)
            dc.mul_(forget)
            torch.mm(gates_of[t], W_hh, out=dr)
    return d_out, dr, dc


def local_derivatives(gates: Tensor, c: Tensor, tanh_c: Tensor) -> tuple[tuple[Tensor, ...], ...]:
    """Return the factors of the derivatives of cells and outputs for several frames at once.

    Returns:
        dh/dc (N, H); f (N, H); dc/d(i, f, g) (N, 3, H) and dh/do (N, H), both in the memory of the gates.
    """
    H = c.shape[2]
    (i, f, g, o), (d_i, d_f, d_g, d_o) = torch.split(gates.clone(), H, 2), torch.split(gates, H, 2)
    sigmoid_backward(g, i, grad_input=d_i)
    sigmoid_backward(c, f, grad_input=d_f)
    tanh_backward(i, g, grad_input=d_g)
    sigmoid_backward(tanh_c, o, grad_input=d_o)
    of_cell = tanh_backward(o, tanh_c, grad_input=torch.empty_like(c))
    by_cell = gates[..., : 3 * H].view(*c.shape[:2], 3, H)
    return of_cell.unbind(0), f.unbind(0), by_cell.unbind(0), d_o.unbind(0)
