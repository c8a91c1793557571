"""LSTM and BLSTM acoustic models.

Shapes: feats_NTF -> logits_NUC with U = ceil(T / stack) output frames; legend: N utterances, T frames, F values per
frame, U output frames, H hidden values, C outputs; of mapped layers also D layers, G = 4 H gates, P outputs of a layer
(its cells, or their projection).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from murmur.core.torch_private import has_fast_bfloat16, is_mapped
from murmur.speech.models.layers import Kept, stacked, through


@dataclass(frozen=True)
class Lstm:
    """Unidirectional LSTM layers and one linear layer (Sak, Senior and Beaufays 2014).

    Attributes:
        hidden: number of cells per layer.
        layers: number of LSTM layers.
        dropout: share of every layer's outputs that is set to zero during training.
        stack: number of frames joined into one input, which divides the frame rate.
        projection: size to which layer outputs are projected, for the next layer and the recurrence; None for none.
        bottleneck: width of a linear layer below the last one; None for no such layer.
        kept: values of each layer that are kept for the backward pass.
    """

    hidden: int = 256
    layers: int = 3
    dropout: float = 0.0
    stack: int = 1
    projection: int | None = None
    bottleneck: int | None = None
    kept: Kept = "activations"
    directions: ClassVar[int] = 1

    def build(self, inputs: int, outputs: int) -> AcousticLstm:
        """A module for F = inputs features and C = outputs columns."""
        return AcousticLstm(self, inputs, outputs)


@dataclass(frozen=True)
class Blstm(Lstm):
    """Bidirectional LSTM layers (Graves et al. 2013) and one linear layer; cells and projection are per direction.

    With hidden=512, layers=6, bottleneck=256 it is the model of IBM's papers on ADPSGD: 43,154,944 parameters for 260
    features and 32,000 states.
    """

    directions: ClassVar[int] = 2


class AcousticLstm(nn.Module):
    """The module of `Lstm` and `Blstm`.

    The backward direction is an LSTM over the utterance reversed within its own length, so that padding does not
    affect the frames before it; this is twice as fast on a CPU as torch's packed sequences.
    """

    def __init__(self, config: Lstm, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stack = config.stack
        self.kept: Kept = config.kept
        top = (config.projection or config.hidden) * config.directions
        sizes = [inputs * config.stack] + [top] * (config.layers - 1)

        def direction() -> nn.ModuleList:
            layer = partial(nn.LSTM, hidden_size=config.hidden, batch_first=True, proj_size=config.projection or 0)
            return nn.ModuleList(layer(size) for size in sizes)

        self.forwards = direction()
        self.backwards = direction() if config.directions > 1 else nn.ModuleList()
        self.dropout = nn.Dropout(config.dropout)
        self.bottleneck = None if config.bottleneck is None else nn.Linear(top, config.bottleneck)
        self.output = nn.Linear(config.bottleneck or top, outputs)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set forget gate biases to 1 in total, so that memory lasts from the start (Jozefowicz et al. 2015)."""
        for layer in (*self.forwards, *self.backwards):
            hidden = layer.hidden_size
            with torch.no_grad():
                layer.bias_ih_l0[hidden : 2 * hidden].fill_(1.0)
                layer.bias_hh_l0[hidden : 2 * hidden].fill_(0.0)

    def output_lengths(self, lengths_N: Tensor) -> Tensor:
        """Output frames of utterances of `lengths_N` input frames."""
        return torch.div(lengths_N + self.stack - 1, self.stack, rounding_mode="floor")

    def forward(self, feats_NTF: Tensor, lengths_N: Tensor | None = None) -> Tensor:
        """logits_NUC; without `lengths_N` every utterance fills all T frames."""
        hidden_NUH = stacked(feats_NTF, self.stack)
        reverse_NU1 = self._reversal(hidden_NUH, lengths_N) if len(self.backwards) else None
        for number in range(len(self.forwards)):
            hidden_NUH = self.dropout(through(self.layer, self.kept, number, hidden_NUH, reverse_NU1))
        return self.output(hidden_NUH if self.bottleneck is None else self.bottleneck(hidden_NUH))

    def layer(self, number: int, hidden_NUH: Tensor, reverse_NU1: Tensor | None) -> Tensor:
        """Both directions of a layer, 0 the lowest; `reverse_NU1` gives the order of frames in the backward one."""
        directions: list[nn.Module] = [self.forwards[number]]
        inputs = [hidden_NUH]
        if reverse_NU1 is not None:
            directions.append(self.backwards[number])
            inputs.append(_pick(hidden_NUH, reverse_NU1))
        outputs = _run(directions, inputs)
        return outputs[0] if reverse_NU1 is None else torch.cat((outputs[0], _pick(outputs[1], reverse_NU1)), -1)

    def _reversal(self, hidden_NUH: Tensor, lengths_N: Tensor | None) -> Tensor:
        frames = torch.arange(hidden_NUH.shape[1], device=hidden_NUH.device)[None]
        if lengths_N is None:
            return frames.flip(1).expand(hidden_NUH.shape[0], -1)[..., None]
        ends = self.output_lengths(lengths_N.to(hidden_NUH.device))[:, None]
        return torch.where(frames < ends, ends - 1 - frames, frames)[..., None]


def _run(modules: list[nn.Module], inputs: list[Tensor]) -> list[Tensor]:
    """Outputs of LSTMs on an input each; in float32 if autocast requests bfloat16 and the processor lacks it."""
    layers = [module for module in modules if isinstance(module, nn.LSTM)]
    if is_mapped(cast(Tensor, layers[0].weight_ih_l0)):
        return list(mapped_lstm(layers, torch.stack(inputs)))
    narrow = inputs[0].device.type == "cpu" and torch.is_autocast_enabled("cpu")
    if not narrow or has_fast_bfloat16():
        return [layer(each)[0] for layer, each in zip(layers, inputs, strict=True)]
    with torch.autocast("cpu", enabled=False):  # oneDNN has no other LSTM in bfloat16 and raises (torch 2.13)
        return [layer(each.float())[0] for layer, each in zip(layers, inputs, strict=True)]


def _pick(values_NUH: Tensor, index_NU1: Tensor) -> Tensor:
    return values_NUH.gather(1, index_NU1.expand(-1, -1, values_NUH.shape[2]))


def mapped_lstm(layers: Sequence[nn.LSTM], inputs_DNUF: Tensor) -> Tensor:
    """Outputs (D, N, U, P) of D layers of equal sizes, each on inputs of its own, computed side by side.

        (i, f, g, o) = W x_t + R h_{t-1} + b,  c_t = s(f) c_{t-1} + s(i) tanh(g),  h_t = s(o) tanh(c_t)

    Equal to `nn.LSTM` from zero states but for rounding, by plain products: torch.func.vmap cannot map PyTorch's fused
    LSTM over stacked weights.
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
