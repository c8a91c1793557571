"""Factored time delay neural networks (Povey et al. 2018): low-rank layers, one factor semi-orthogonal, with bypass.

Shapes: feats_NTF -> logits_NUC with U = ceil(T / stack) output frames; legend: N utterances, T frames, F values per
frame, U output frames, H hidden values, B bottleneck values, C outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from murmur.speech.models.convolutions import Convolutions
from murmur.speech.models.memory import Kept, through
from murmur.speech.models.semi_orthogonal import SemiOrthogonal
from murmur.speech.models.splicing import edges_repeated, every, layers_at_full_rate, slower, splice
from murmur.speech.models.tdnn import TdnnLayer


@dataclass(frozen=True)
class TdnnF:
    """One spliced layer as in `Tdnn`, then factored layers, and one linear layer.

    A factored layer of stride s, with M semi-orthogonal (M M^T = I, see `murmur.speech.models.semi_orthogonal`):

        b_t = M [x_{t-s}; x_t]     y_t = dropout(norm(relu(W [b_t; b_{t+s}] + c)))     output_t = y_t + bypass x_t

    Frames beyond the edges of the input repeat the edge frame.

    Attributes:
        hidden: H, number of values per layer.
        bottleneck: B, number of values between the two factors.
        offsets: frame offsets of the first layer.
        strides: s of each factored layer; 0 for a layer without context.
        bypass: share of a factored layer's input that is added to its output.
        dropout: share of every layer's values that is set to zero during training, before the bypass.
        front: convolutions before the first layer; None for none.
        kept: values of each layer that are kept for the backward pass.
        stack: as for `Tdnn`.
    """

    hidden: int = 320
    bottleneck: int = 64
    offsets: tuple[int, ...] = (-1, 0, 1)
    strides: tuple[int, ...] = (1, 1, 0, 3, 3, 3)
    bypass: float = 0.66
    dropout: float = 0.1
    front: Convolutions | None = None
    kept: Kept = "activations"
    stack: int = 1

    @property
    def left_frames(self) -> int:
        """Frames before t that output t depends on."""
        front = 0 if self.front is None else self.front.frames
        return front - min(*self.offsets, 0) + sum(self.strides)

    @property
    def right_frames(self) -> int:
        """Frames after t that output t depends on."""
        front = 0 if self.front is None else self.front.frames
        return front + max(*self.offsets, 0) + sum(self.strides)

    def build(self, inputs: int, outputs: int) -> AcousticTdnnF:
        """A module for F = inputs features and C = outputs columns.

        Raises:
            ValueError: no offset, no factored layer, a negative stride, a stack below 1, a bottleneck wider than its
                input, or features that do not fit the convolutions.
        """
        if not self.offsets or not self.strides or min(self.strides) < 0 or self.stack < 1:
            raise ValueError(
                f"offsets {self.offsets}, strides {self.strides} and stack {self.stack} need at least one offset, one"
                " stride, no negative stride, and a stack of at least 1"
            )
        return AcousticTdnnF(self, inputs, outputs)


class FactoredLayer(nn.Module):
    """One factored layer without dropout and bypass, x_NTH -> y_NTH."""

    def __init__(self, hidden: int, bottleneck: int, stride: int) -> None:
        super().__init__()
        self.before: tuple[int, ...] = (-stride, 0) if stride else (0,)
        self.after: tuple[int, ...] = (0, stride) if stride else (0,)
        self.narrow = SemiOrthogonal(hidden * len(self.before), bottleneck)
        self.wide = nn.Linear(bottleneck * len(self.after), hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x_NTH: Tensor, lengths_N: Tensor | None) -> Tensor:
        """y_NTH; with `lengths_N`, the padding of both factors repeats the last frame of each utterance."""
        narrow_NTB = self.narrow(splice(edges_repeated(x_NTH, lengths_N), self.before))
        wide_NTH = self.wide(splice(edges_repeated(narrow_NTB, lengths_N), self.after))
        return self.norm(functional.relu(wide_NTH))


class AcousticTdnnF(nn.Module):
    """The module of `TdnnF`."""

    def __init__(self, config: TdnnF, inputs: int, outputs: int) -> None:
        super().__init__()
        front = [] if config.front is None else config.front.build(inputs)
        self.front = nn.ModuleList(front)
        self.first = TdnnLayer(front[-1].outputs if front else inputs, config.hidden, config.offsets)
        self.stack = config.stack
        self.full_rate = layers_at_full_rate([(stride,) for stride in config.strides], config.stack)
        steps = [1 if number < self.full_rate else config.stack for number in range(len(config.strides))]
        strides = [stride // step for stride, step in zip(config.strides, steps, strict=True)]
        layers = [FactoredLayer(config.hidden, config.bottleneck, stride) for stride in strides]
        self.layers = nn.ModuleList(layers)
        self.dropout = nn.Dropout(config.dropout)
        self.bypass = config.bypass
        self.kept: Kept = config.kept
        self.output = nn.Linear(config.hidden, outputs)

    def output_lengths(self, lengths_N: Tensor) -> Tensor:
        """Output frames of utterances of `lengths_N` input frames."""
        return slower(lengths_N, self.stack)

    def forward(self, feats_NTF: Tensor, lengths_N: Tensor | None = None) -> Tensor:
        """logits_NUC; with `lengths_N`, the padding repeats the last frame of each utterance, like the edges."""
        hidden = feats_NTF
        for layer in self.front:
            hidden = through(layer, self.kept, edges_repeated(hidden, lengths_N))
        hidden = self.dropout(through(self.first, self.kept, edges_repeated(hidden, lengths_N)))
        for number, layer in enumerate(self.layers):
            if number == self.full_rate:
                hidden, lengths_N = every(self.stack, hidden, lengths_N)
            hidden = self.dropout(through(layer, self.kept, hidden, lengths_N)) + self.bypass * hidden
        if self.full_rate == len(self.layers):
            hidden, _ = every(self.stack, hidden, lengths_N)
        return self.output(hidden)
