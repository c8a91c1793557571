"""Applies natural gradient to a model's calls of linear, convolution and LSTM functions on known parameters.

While a loss is computed and differentiated, calls of `linear`, `conv1d`, `conv2d` and `lstm` with a trainable weight
are replaced by functions that give the same values and precondition the weight's gradient in the backward pass. Modules
need no change: nn.Linear, nn.Conv1d, nn.Conv2d, nn.LSTM and their functional forms are covered. Everything else
(normalisations, embeddings, nn.GRU, convolutions in groups or with padding by name) keeps its plain gradient.

An LSTM layer is one function: input projection, recurrence, and a backward pass that keeps the gate derivatives.

    (i, f, g, o)_t = act(W_ih x_t + W_hh r_{t-1} + b_ih + b_hh)
    c_t = f c_{t-1} + i g,   h_t = o tanh c_t,   r_t = W_hr h_t

(r_t = h_t without projection; gates in torch's order.) Fused kernels hide the derivatives of the gates' inputs; with
them [W_ih, W_hh, b] is one affine layer on [x_t, r_{t-1}, 1], as in Kaldi, and its gradient can be preconditioned.

Shapes: T frames, N sequences, I inputs, H cells, R outputs of a layer and direction, D directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.overrides import TorchFunctionMode

from murmur.core.torch_private import DisableTorchFunction, backward_engine
from murmur.engine.optim.natural_gradient.fisher import (
    SIDES,
    Affine,
    FisherConfig,
    Gradients,
    SampleRows,
    TwoSides,
    product,
)

States = Callable[[Tensor], MutableMapping[str, Any]]
SidesOf = Callable[[Tensor], TwoSides | None]
sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.grad_input
IN_CACHE = 1 << 17  # number of gate values whose local derivatives are computed at once


class Preconditioning(TorchFunctionMode):
    """Context that makes natural gradients of given parameters for all computation and differentiation inside it.

    `samples` of the minibatch are set before its backward pass.
    """

    def __init__(self, parameters: Iterable[Tensor], states: States, config: FisherConfig) -> None:
        super().__init__()
        self._known = {id(p) for p in parameters}
        self._states, self._config = states, config
        self.samples = 1.0
        self._before: dict[int, tuple[MutableMapping[str, Any], dict[str, Any]]] = {}
        self._answers: dict[Any, Callable[..., Any]] = {
            functional.linear: self._linear,
            functional.conv1d: self._conv1d,
            functional.conv2d: self._conv2d,
            torch.lstm: self._lstm,
            Tensor.backward: self._backward,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        answer = self._answers.get(func) if torch.is_grad_enabled() else None
        found = NotImplemented if answer is None else answer(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if found is NotImplemented else found

    def _backward(self, loss: Tensor, gradient: Tensor | None = None, *how: Any, **named: Any) -> Any:
        """A mode is disabled while it handles a call, but activations that are recomputed in the backward pass need it.

        Every public entry of the autograd engine would call the mode again, endlessly; this one belongs to the engine.
        """
        if gradient is not None or how or any(named.values()):
            return NotImplemented
        engine, one = backward_engine, torch.ones_like(loss)
        with self:
            engine.run_backward((loss,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True)
        return None

    def _sides(self, weight: Tensor) -> TwoSides | None:
        if id(weight) not in self._known or not weight.requires_grad:
            return None
        state = self._states(weight)
        self._before.setdefault(id(weight), (state, _estimates(state)))
        return TwoSides(state, self._config, lambda: self.samples)

    def end_minibatch(self, skipped: bool) -> None:
        """End a minibatch. If it is skipped, its layers get back the estimates that they had before it."""
        if skipped:
            for state, before in self._before.values():
                for name in _estimates(state).keys() - before.keys():
                    del state[name]
                state.update(before)
        self._before.clear()

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        sides = self._sides(weight)
        if sides is None:
            return NotImplemented
        return Affine.apply(sides, _as_computed(input), weight, bias)  # type: ignore[no-untyped-call]

    def _conv1d(self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *how: Any, **named: Any) -> Any:
        where = _geometry(how, named, dims=1)
        if where is None or input.dim() != 3:
            return NotImplemented
        lifted = [(neutral, *sizes) for neutral, sizes in zip((1, 0, 1), where, strict=True)]
        y = self._on_patches(input[:, :, None], weight, bias, [(1, weight.shape[2]), *lifted])
        return NotImplemented if y is NotImplemented else y[:, :, 0]

    def _conv2d(self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *how: Any, **named: Any) -> Any:
        where = _geometry(how, named, dims=2)
        if where is None or input.dim() != 4:
            return NotImplemented
        return self._on_patches(input, weight, bias, [tuple(weight.shape[2:]), *where])

    def _on_patches(self, input: Tensor, weight: Tensor, bias: Tensor | None, how: list[tuple[int, ...]]) -> Any:
        sides = self._sides(weight)
        if sides is None:
            return NotImplemented
        kernel, stride, padding, dilation = how
        patches = functional.unfold(_as_computed(input), kernel, dilation, padding, stride)
        y: Tensor = Affine.apply(sides, patches.transpose(1, 2), weight, bias)  # type: ignore[no-untyped-call]
        sizes = zip(input.shape[2:], kernel, stride, padding, dilation, strict=True)
        shape = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in sizes]
        return y.transpose(1, 2).reshape(*y.shape[::2], *shape)

    def _lstm(self, input: Tensor, second: Any, third: Any, *rest: Any) -> Any:
        """torch.lstm(x, (h, c), weights, biased, layers, dropout, train, bidirectional, batch_first), or packed:
        torch.lstm(data, batch_sizes, (h, c), weights, biased, layers, dropout, train, bidirectional).
        """
        packed = isinstance(second, Tensor)
        weights = rest[0] if packed else third
        biased, layers, dropout, train, bidirectional = rest[1:6] if packed else rest[:5]
        if not any(id(w) in self._known for w in weights):
            return NotImplemented
        run = LstmStack(weights, biased, layers, 1 + bidirectional, dropout if train else 0.0)
        x = _as_computed(input)
        if packed:
            padded, lengths = pad_packed_sequence(PackedSequence(x, second))
            y, h, c = run(padded, third, self._sides, lengths.to(x.device))
            return pack_padded_sequence(y, lengths).data, h, c
        batch_first = rest[5]
        y, h, c = run(x.transpose(0, 1) if batch_first else x, second, self._sides, None)
        return y.transpose(0, 1) if batch_first else y, h, c


def _estimates(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name.startswith(SIDES)}


def _as_computed(x: Tensor) -> Tensor:
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype == torch.float32:
        return x.to(torch.get_autocast_dtype(kind))
    return x


def _geometry(how: tuple[Any, ...], named: Mapping[str, Any], dims: int) -> list[tuple[int, ...]] | None:
    """Return stride, padding and dilation of a convolution; None if it is in groups or padded by name."""
    given = {**dict(zip(("stride", "padding", "dilation", "groups"), how, strict=False)), **named}
    if given.get("groups", 1) != 1 or isinstance(given.get("padding"), str):
        return None
    found = [given.get(name, neutral) for name, neutral in (("stride", 1), ("padding", 0), ("dilation", 1))]
    return [(v,) * dims if isinstance(v, int) else tuple(v) * (dims if len(v) == 1 else 1) for v in found]


@dataclass(frozen=True)
class LstmStack:
    """Arguments of torch.lstm, by name; `weights` of all layers and directions are in torch's order."""

    weights: Sequence[Tensor]
    biased: bool
    layers: int
    directions: int
    dropout: float

    def __call__(
        self, x: Tensor, begin: Sequence[Tensor], sides_of: SidesOf, lengths_N: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x (T, N, I), h_0 and c_0 (layers D, N, ...) -> y (T, N, D R), h_n, c_n; frames past an end are zeros."""
        h0, c0 = (state.to(x.dtype).unbind(0) for state in begin)
        ends_h, ends_c = [], []
        for layer in range(self.layers):
            outputs = []
            for direction in range(self.directions):
                at = layer * self.directions + direction
                ordered = _reversed(x, lengths_N) if direction else x
                r, c = self._run(at, (ordered, h0[at], c0[at]), sides_of)
                ends_h.append(_last(r, lengths_N))
                ends_c.append(_last(c, lengths_N))
                outputs.append(_reversed(r, lengths_N) if direction else r)
            x = outputs[0] if self.directions == 1 else torch.cat(outputs, 2)
            if self.dropout > 0 and layer + 1 < self.layers:
                x = functional.dropout(x, self.dropout)
        return x, torch.stack(ends_h), torch.stack(ends_c)

    def _run(self, at: int, states: tuple[Tensor, Tensor, Tensor], sides_of: SidesOf) -> tuple[Tensor, Tensor]:
        each = len(self.weights) // (self.layers * self.directions)
        W_ih, W_hh, *rest = self.weights[at * each : (at + 1) * each]
        b_ih, b_hh = rest[:2] if self.biased else (None, None)
        W_hr = rest[-1] if each == (5 if self.biased else 3) else None
        sides = (sides_of(W_ih), None if W_hr is None else sides_of(W_hr))
        found: tuple[Tensor, Tensor] = LstmLayer.apply(sides, *states, W_ih, W_hh, b_ih, b_hh, W_hr)  # type: ignore[no-untyped-call]
        return found


def _index(lengths_N: Tensor, frames: int) -> Tensor:
    times = torch.arange(frames, device=lengths_N.device)[:, None]
    return torch.where(times < lengths_N, lengths_N - 1 - times, times)[..., None]


def _reversed(x: Tensor, lengths_N: Tensor | None) -> Tensor:
    if lengths_N is None:
        return x.flip(0)
    return x.gather(0, _index(lengths_N, x.shape[0]).expand(-1, -1, x.shape[2]))


def _last(x: Tensor, lengths_N: Tensor | None) -> Tensor:
    if lengths_N is None:
        return x[-1]
    return x.gather(0, (lengths_N - 1)[None, :, None].expand(1, -1, x.shape[2]))[0]


class LstmLayer(torch.autograd.Function):
    """x (T, N, I), r_0 (N, R), c_0 (N, H) -> r (T, N, R), c (T, N, H); one direction of one layer, forwards in time."""

    @staticmethod
    def forward(
        ctx: Any, sides: tuple[TwoSides | None, ...], x: Tensor, r0: Tensor, c0: Tensor, *weights: Any
    ) -> tuple[Tensor, Tensor]:
        """Compute r and c from x, r_0, c_0, W_ih, W_hh, b_ih, b_hh, W_hr; the last three may be None."""
        W_ih, W_hh = (w.to(x.dtype) for w in weights[:2])
        b_ih, b_hh, W_hr = (None if w is None else w.to(x.dtype) for w in weights[2:])
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
    """Return derivatives of r with a projection (T, N, R), r_0 and c_0; those of the gates' inputs replace them."""
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
    """Return dh/dc (N, H), f (N, H), dc/d(i, f, g) (N, 3, H) and dh/do (N, H) of several frames at once."""
    H = c.shape[2]
    (i, f, g, o), (d_i, d_f, d_g, d_o) = torch.split(gates.clone(), H, 2), torch.split(gates, H, 2)
    sigmoid_backward(g, i, grad_input=d_i)
    sigmoid_backward(c, f, grad_input=d_f)
    tanh_backward(i, g, grad_input=d_g)
    sigmoid_backward(tanh_c, o, grad_input=d_o)
    of_cell = tanh_backward(o, tanh_c, grad_input=torch.empty_like(c))
    by_cell = gates[..., : 3 * H].view(*c.shape[:2], 3, H)
    return of_cell.unbind(0), f.unbind(0), by_cell.unbind(0), d_o.unbind(0)
