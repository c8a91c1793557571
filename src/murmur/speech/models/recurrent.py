"""LSTM and BLSTM acoustic models.

Shapes: feats_NTF -> logits_NUC with U = ceil(T / stack) output frames; legend: N utterances, T frames, F values per
frame, U output frames, H hidden values, C outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from murmur.core.torch_private import has_fast_bfloat16, is_mapped
from murmur.speech.models.mapped_lstm import mapped_lstm
from murmur.speech.models.memory import Kept, through


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

    def build(self, inputs: int, outputs: int) -> AcousticLstm:
        """A module for F = inputs features and C = outputs columns."""
        return AcousticLstm(_sizes(self, inputs, directions=1), outputs, self)


@dataclass(frozen=True)
class Blstm:
    """Bidirectional LSTM layers (Graves et al. 2013) and one linear layer.

    With hidden=512, layers=6, bottleneck=256 it is the model of IBM's papers on ADPSGD: 43,154,944 parameters for 260
    features and 32,000 states.

    Attributes:
        hidden: number of cells per layer and direction.
        layers: number of LSTM layers.
        dropout: share of every layer's outputs that is set to zero during training.
        stack: number of frames joined into one input, which divides the frame rate.
        projection: size to which the outputs of each direction are projected; None for none.
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

    def build(self, inputs: int, outputs: int) -> AcousticLstm:
        """A module for F = inputs features and C = outputs columns."""
        return AcousticLstm(_sizes(self, inputs, directions=2), outputs, self)


def _sizes(config: Lstm | Blstm, inputs: int, directions: int) -> list[tuple[int, int]]:
    first = (inputs * config.stack, directions)
    return [first] + [((config.projection or config.hidden) * directions, directions)] * (config.layers - 1)


class AcousticLstm(nn.Module):
    """The module of `Lstm` and `Blstm`.

    The backward direction is an LSTM over the utterance reversed within its own length, so that padding does not
    affect the frames before it; this is twice as fast on a CPU as torch's packed sequences.
    """

    def __init__(self, sizes: list[tuple[int, int]], outputs: int, config: Lstm | Blstm) -> None:
        super().__init__()
        self.stack = config.stack
        self.kept: Kept = config.kept
        projection = config.projection or 0
        self.forwards = nn.ModuleList(
            nn.LSTM(size, config.hidden, batch_first=True, proj_size=projection) for size, _ in sizes
        )
        self.backwards = nn.ModuleList(
            nn.LSTM(size, config.hidden, batch_first=True, proj_size=projection)
            for size, directions in sizes
            if directions == 2
        )
        self.dropout = nn.Dropout(config.dropout)
        top = (projection or config.hidden) * sizes[0][1]
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
        hidden_NUH = _stacked(feats_NTF, self.stack)
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


def _stacked(feats_NTF: Tensor, stack: int) -> Tensor:
    if stack == 1:
        return feats_NTF
    padded = functional.pad(feats_NTF, (0, 0, 0, -feats_NTF.shape[1] % stack))
    return padded.reshape(padded.shape[0], padded.shape[1] // stack, -1)
