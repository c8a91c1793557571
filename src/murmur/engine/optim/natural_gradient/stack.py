"""Stacks of LSTM layers, of one or two directions, padded or packed: torch.lstm out of `LstmLayer`.

Shapes: T frames, N sequences, I inputs, H cells, R outputs of a layer and direction, D directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from murmur.engine.optim.natural_gradient.affine import TwoSides
from murmur.engine.optim.natural_gradient.lstm import LstmLayer

SidesOf = Callable[[Tensor], TwoSides | None]


@dataclass(frozen=True)
class LstmStack:
    """Arguments of torch.lstm, by name.

    Attributes:
        weights: Weights of all layers and directions, in torch's order.
        biased: True if there are biases.
        layers: Number of layers.
        directions: 1, or 2 for a bidirectional LSTM.
        dropout: Dropout between layers; 0 outside training.
    """

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
    """Source index of each frame when every sequence is reversed within its own length, (T, N, 1)."""
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
