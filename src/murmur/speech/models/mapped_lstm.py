"""LSTM layers by plain products, for torch.func.vmap: it cannot map PyTorch's fused LSTM over stacked weights.

    (i, f, g, o) = W x_t + R h_{t-1} + b,  c_t = s(f) c_{t-1} + s(i) tanh(g),  h_t = s(o) tanh(c_t)

Shapes: D layers, N utterances, U frames, F input values, H cells, G = 4 H gates,
P outputs of a layer (its cells, or their projection).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def mapped_lstm(layers: Sequence[nn.LSTM], inputs_DNUF: Tensor) -> Tensor:
    """Outputs (D, N, U, P) of D layers of equal sizes, each on inputs of its own, computed side by side.

    Equal to `nn.LSTM` from zero states but for rounding.
    """
    inner_DFG, recurrent_DPG = _stack(layers, "weight_ih_l0").mT, _stack(layers, "weight_hh_l0").mT
    bias_D1G = (_stack(layers, "bias_ih_l0") + _stack(layers, "bias_hh_l0"))[:, None]
    projection_DHP = _stack(layers, "weight_hr_l0").mT if layers[0].proj_size else None
    gates_DNUG = torch.baddbmm(bias_D1G, inputs_DNUF.flatten(1, 2), inner_DFG).unflatten(1, inputs_DNUF.shape[1:3])
    h_DNP = inputs_DNUF.new_zeros(*inputs_DNUF.shape[:2], recurrent_DPG.shape[1])
    c_DNH = inputs_DNUF.new_zeros(*inputs_DNUF.shape[:2], layers[0].hidden_size)
    outputs = []
    for gates_DNG in gates_DNUG.unbind(2):
        i, f, g, o = torch.baddbmm(gates_DNG, h_DNP, recurrent_DPG).chunk(4, -1)
        c_DNH = f.sigmoid() * c_DNH + i.sigmoid() * g.tanh()
        h_DNP = o.sigmoid() * c_DNH.tanh()
        if projection_DHP is not None:
            h_DNP = torch.bmm(h_DNP, projection_DHP)
        outputs.append(h_DNP)
    return torch.stack(outputs, 2)


def _stack(layers: Sequence[nn.LSTM], name: str) -> Tensor:
    return torch.stack([getattr(layer, name) for layer in layers])
