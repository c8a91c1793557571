"""Convolutions over time and mel bins as the first layers of a network (Abdel-Hamid et al. 2014; Kaldi's CNN-TDNN).

Shapes: x_NTF -> y_NTG, the frame rate unchanged; legend: N utterances, T frames, S streams or channels, B mel bins,
F = S B values per frame, G = (last channels) (last B) values per frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from murmur.speech.models.splicing import lengthened

REACH = 1  # frames and bins on either side of the centre of a 3 x 3 filter


@dataclass(frozen=True)
class Convolutions:
    """Layers norm(relu(3 x 3 convolution)); each but the first takes every second bin, which halves the bins.

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
