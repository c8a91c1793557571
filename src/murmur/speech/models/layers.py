"""Parts of networks: spliced frames, memory kept for the backward pass, convolutions.

Shapes: N utterances, T frames, F values per frame, K spliced offsets; of convolutions x_NTF -> y_NTG, S streams or
channels, B mel bins, F = S B values per frame, G = (last channels) (last B) values per frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Kept = Literal["activations", "inputs"]  # of each layer
REACH = 1  # frames and bins on either side of the centre of a 3 x 3 filter


def through(layer: Callable[..., Tensor], kept: Kept, *inputs: Any) -> Tensor:
    """layer(*inputs), with its activations kept or computed again in the backward pass.

    Recomputing activations (Chen et al., "Training deep nets with sublinear memory cost", 2016) costs one more
    forward pass and changes no bit: random masks are drawn again as they were.

    Raises:
        ValueError: `kept` is neither "activations" nor "inputs".
    """
    if kept == "inputs" and torch.is_grad_enabled():
        output: Tensor = checkpoint(layer, *inputs, use_reentrant=False)
        return output
    if kept not in ("activations", "inputs"):
        raise ValueError(f"kept={kept!r}: layers keep their 'activations' or their 'inputs'")
    return layer(*inputs)


def splice(x_NTF: Tensor, offsets: tuple[int, ...]) -> Tensor:
    """Frames t + o for all offsets o side by side, (N, T, K F), the edge frames repeated beyond the edges."""
    if offsets == (0,):
        return x_NTF
    frames = x_NTF.shape[1]
    before, after = max(-min(offsets), 0), max(*offsets, 0)
    padded = lengthened(x_NTF, before, after)
    return torch.cat([padded[:, before + o : before + o + frames] for o in offsets], dim=2)


def lengthened(x_NTF: Tensor, before: int, after: int) -> Tensor:
    """(N, before + T + after, F): the first frame `before` times more, the last one `after` times more."""
    return functional.pad(x_NTF.transpose(1, 2), (before, after), mode="replicate").transpose(1, 2)


def edges_repeated(x_NTF: Tensor, lengths_N: Tensor | None) -> Tensor:
    """Each utterance with its last frame in place of the padding."""
    if lengths_N is None:
        return x_NTF
    last_N1 = lengths_N.to(x_NTF.device)[:, None] - 1
    index_NT = torch.minimum(torch.arange(x_NTF.shape[1], device=x_NTF.device)[None], last_N1)
    return x_NTF.gather(1, index_NT[..., None].expand(-1, -1, x_NTF.shape[2]))


def slower(lengths_N: Tensor, step: int) -> Tensor:
    """Frames of utterances of `lengths_N` frames when every `step`-th frame is taken, the first one included."""
    return torch.div(lengths_N + step - 1, step, rounding_mode="floor")


def stacked(feats_NTF: Tensor, stack: int) -> Tensor:
    """Every `stack` frames joined into one, (N, ceil(T / stack), stack F); zeros fill up the last one."""
    if stack == 1:
        return feats_NTF
    padded = functional.pad(feats_NTF, (0, 0, 0, -feats_NTF.shape[1] % stack))
    return padded.reshape(padded.shape[0], padded.shape[1] // stack, -1)


def every(step: int, x_NTF: Tensor, lengths_N: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Frames 0, `step`, 2 `step` ... of each utterance, and their numbers."""
    if step == 1:
        return x_NTF, lengths_N
    return x_NTF[:, ::step], None if lengths_N is None else slower(lengths_N, step)


def layers_at_full_rate(offsets: Sequence[tuple[int, ...]], step: int) -> int:
    """Layers that must see every frame when outputs are wanted at every `step`-th frame.

    The layers above them have offsets that are multiples of `step`, so that they see every `step`-th frame alone.
    """
    needed = len(offsets)
    while needed and all(offset % step == 0 for offset in offsets[needed - 1]):
        needed -= 1
    return needed


@dataclass(frozen=True)
class Convolutions:
    """Layers norm(relu(3 x 3 convolution)); each but the first takes every second bin, which halves the bins.

    Abdel-Hamid et al. (2014); Kaldi's CNN-TDNN.

    The values of a frame are streams of `bins` neighbouring frequencies each: log-mel energies, then their derivatives.
    Beyond the edges of the input the edge frame repeats; beyond the lowest and the highest bin stand zeros.

    Attributes:
        channels: number of filters of each layer.
        bins: mel bins of a stream.
    """

    channels: tuple[int, ...] = (32, 32)
    bins: int = 40

    @property
    def frames(self) -> int:
        """Frames before t, and after t, that output t depends on."""
        return REACH * len(self.channels)

    def build(self, inputs: int) -> list[ConvolutionLayer]:
        """The layers for F = inputs features.

        Raises:
            ValueError: no layer, no filter or no bin, or F is no multiple of the number of bins.
        """
        if not self.channels or min(*self.channels, self.bins) < 1:
            raise ValueError(f"{self} needs at least one layer, one filter in every layer and one bin")
        if inputs % self.bins:
            raise ValueError(
                f"{inputs} features are not streams of {self.bins} mel bins: set network.front.bins to the number of"
                " bins of the features; features that are no frequencies have no convolutions"
            )
        layers, bins = list[ConvolutionLayer](), self.bins
        for number, sizes in enumerate(pairwise((inputs // self.bins, *self.channels))):
            layers.append(ConvolutionLayer(*sizes, bins, 1 if number == 0 else 2))
            bins = layers[-1].bins_out
        return layers


class ConvolutionLayer(nn.Module):
    """One 3 x 3 convolution with ReLU and layer normalisation, x_NTF -> y_NTG.

    Attributes:
        streams, bins: S and B of its input.
        bins_out: bins of its output.
        outputs: G.
    """

    def __init__(self, streams: int, channels: int, bins: int, step: int) -> None:
        super().__init__()
        self.streams, self.bins, self.bins_out = streams, bins, (bins - 1) // step + 1
        self.outputs = channels * self.bins_out
        self.filters = nn.Conv2d(streams, channels, 2 * REACH + 1, (1, step), (0, REACH))
        self.norm = nn.LayerNorm(self.outputs)

    def forward(self, x_NTF: Tensor) -> Tensor:
        """y_NTG."""
        longer_NTF = lengthened(x_NTF, REACH, REACH)
        x_NTSB = longer_NTF.reshape(*longer_NTF.shape[:2], self.streams, self.bins)
        y_NTSB = functional.relu(self.filters(x_NTSB.transpose(1, 2))).transpose(1, 2)
        return self.norm(y_NTSB.reshape(*x_NTF.shape[:2], self.outputs))
