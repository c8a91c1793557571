"""Fully connected networks on spliced frames (Hinton et al. 2012), the first hybrid acoustic models.

Shapes: feats_NTF -> logits_NTC, the frame rate unchanged; legend: N utterances, T frames, F values per frame, H hidden
values, C outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from murmur.speech.models.memory import Kept, through
from murmur.speech.models.splicing import edges_repeated, splice

Nonlinearity = Literal["sigmoid", "relu", "tanh"]
NONLINEARITIES: dict[str, type[nn.Module]] = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU, "tanh": nn.Tanh}


@dataclass(frozen=True)
class Dnn:
    """Layers dropout(f(W x + b)) on frames t - context .. t + context, and one linear layer.

    Attributes:
        hidden: number of values per layer.
        layers: number of hidden layers.
        context: number of frames on either side.
        nonlinearity: function f of every hidden layer; "sigmoid" for networks pre-trained as restricted Boltzmann
            machines.
        dropout: share of every hidden layer's outputs that is set to zero during training.
        kept: values of each hidden layer that are kept for the backward pass.
    """

    hidden: int = 512
    layers: int = 4
    context: int = 5
    nonlinearity: Nonlinearity = "sigmoid"
    dropout: float = 0.0
    kept: Kept = "activations"
    stack = 1

    @property
    def left_frames(self) -> int:
        """Frames before t that output t depends on."""
        return self.context

    @property
    def right_frames(self) -> int:
        """Frames after t that output t depends on."""
        return self.context

    def build(self, inputs: int, outputs: int) -> AcousticDnn:
        """A module for F = inputs features and C = outputs columns.

        Raises:
            ValueError: no hidden layer, a negative context, or an unknown nonlinearity.
        """
        if self.layers < 1 or self.context < 0 or self.nonlinearity not in NONLINEARITIES:
            raise ValueError(
                f"{self} needs at least one layer, a context of at least 0 and a nonlinearity of"
                f" {', '.join(NONLINEARITIES)}"
            )
        return AcousticDnn(self, inputs, outputs)


class AcousticDnn(nn.Module):
    """The module of `Dnn`. Sigmoid layers start as in Glorot and Bengio (2010).

    Attributes:
        maps: affine maps of the hidden layers, from the bottom up.
    """

    starts_without: tuple[str, ...] = ("visible",)  # tensors of a pre-trained stack that this network does not use

    def __init__(self, config: Dnn, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.offsets = tuple(range(-config.context, config.context + 1))
        self.kept: Kept = config.kept
        sizes = [inputs * len(self.offsets)] + [config.hidden] * config.layers
        self.maps = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.nonlinearity = NONLINEARITIES[config.nonlinearity]()
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.hidden, outputs)
        if config.nonlinearity == "sigmoid":
            for layer in self.affine:
                nn.init.xavier_uniform_(layer.weight, gain=4.0)
                nn.init.zeros_(layer.bias)

    @property
    def affine(self) -> list[nn.Linear]:
        """The affine maps of the hidden layers."""
        return [layer for layer in self.maps if isinstance(layer, nn.Linear)]

    def output_lengths(self, lengths_N: Tensor) -> Tensor:
        """Output frames of utterances of `lengths_N` input frames: the same number."""
        return lengths_N

    def spliced(self, feats_NTF: Tensor, lengths_N: Tensor | None = None) -> Tensor:
        """Input of the first layer, (N, T, (2 context + 1) F); the edge frame repeats beyond the edges of the input."""
        return splice(edges_repeated(feats_NTF, lengths_N), self.offsets)

    def layer(self, number: int, x: Tensor) -> Tensor:
        """Output of hidden layer `number`, 0 the lowest, for its input."""
        return self.dropout(self.nonlinearity(self.maps[number](x)))

    def forward(self, feats_NTF: Tensor, lengths_N: Tensor | None = None) -> Tensor:
        """logits_NTC; with `lengths_N`, the padding repeats the last frame of each utterance, like the edges.

        Frames that are spliced already, (B, (2 context + 1) F), have logits (B, C).
        """
        x = feats_NTF if feats_NTF.dim() == 2 else self.spliced(feats_NTF, lengths_N)
        for number in range(len(self.maps)):
            x = through(self.layer, self.kept, number, x)
        return self.output(x)
