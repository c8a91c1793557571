"""Applies natural gradient to a model's calls of linear, convolution and LSTM functions on known parameters.

While a loss is computed and differentiated, calls of `linear`, `conv1d`, `conv2d` and `lstm` with a trainable weight
are replaced by functions that give the same values and precondition the weight's gradient in the backward pass. Modules
need no change: nn.Linear, nn.Conv1d, nn.Conv2d, nn.LSTM and their functional forms are covered. Everything else
(normalisations, embeddings, nn.GRU, convolutions in groups or with padding by name) keeps its plain gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.overrides import TorchFunctionMode

from murmur.core.torch_private import backward_engine
from murmur.engine.optim.natural_gradient.affine import SIDES, Affine, TwoSides
from murmur.engine.optim.natural_gradient.fisher import FisherConfig
from murmur.engine.optim.natural_gradient.stack import LstmStack

States = Callable[[Tensor], MutableMapping[str, Any]]


class Preconditioning(TorchFunctionMode):
    """Context that makes natural gradients of given parameters for all computation and differentiation inside it.

    Attributes:
        samples: Number of samples of the minibatch; set before its backward pass.
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
        """Replace a call, or pass it on."""
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
        """Compute a convolution as an affine map on spliced frames (patches)."""
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
    """Return the entries of Fisher estimates in the state of a weight."""
    return {name: value for name, value in state.items() if name.startswith(SIDES)}


def _as_computed(x: Tensor) -> Tensor:
    """Return `x` in the precision of autocast, if it is enabled."""
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
