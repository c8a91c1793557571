"""Fully connected networks on spliced frames (Hinton et al. 2012), and machines that pre-train their hidden layers.

Shapes: feats_NTF -> logits_NTC, the frame rate unchanged; legend: N utterances, T frames, F values per frame, H hidden
values, C outputs; of machines M frames, V visible units, H hidden ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from murmur.speech.models.layers import Kept, edges_repeated, splice, through

Nonlinearity = Literal["sigmoid", "relu", "tanh"]
NONLINEARITIES: dict[str, type[nn.Module]] = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU, "tanh": nn.Tanh}
WEIGHTS_DEVIATION, HIDDEN_BIASES = 0.1, (-4.0, 0.0)  # initial values, as in Kaldi


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


@dataclass(frozen=True, eq=False)
class Rbm:
    """A restricted Boltzmann machine: W (H, V), b (H,), a (V,), and the kind of its visible units.

        p(v, h) = exp(-E(v, h)) / Z
        E(v, h) = - a'v - b'h - h'W v                        v in {0,1}^V        Bernoulli visible units
                = 1/2 |v - a|^2 - b'h - h'W v                v in R^V            Gaussian ones of variance 1
        F(v)    = - log sum_h exp(-E(v, h)) = - a'v (or 1/2 |v - a|^2) - sum_j log(1 + exp(b_j + W_j v))
        CD-1:     gradient of F(v) - F(v~),  v~ = E[v | h~],  h~ ~ p(h | v)

    Hinton, "Training products of experts by minimizing contrastive divergence" (2002) and "A practical guide to
    training restricted Boltzmann machines" (2010); Mohamed, Dahl and Hinton, "Acoustic modeling using deep belief
    networks" (2012). As in Kaldi's nnet1, the reconstruction is an expectation and not a sample.
    """

    weight: Tensor
    hidden_bias: Tensor
    visible_bias: Tensor
    units: Literal["bernoulli", "gaussian"]

    def hidden(self, v_MV: Tensor) -> Tensor:
        """P(h_j = 1 | v), (M, H)."""
        return torch.sigmoid(functional.linear(v_MV, self.weight, self.hidden_bias))

    def visible(self, h_MH: Tensor) -> Tensor:
        """E[v | h], (M, V)."""
        mean = functional.linear(h_MH, self.weight.t(), self.visible_bias)
        return mean if self.units == "gaussian" else torch.sigmoid(mean)

    def free_energy(self, v_MV: Tensor) -> Tensor:
        """F(v), (M,): -log p(v) up to the constant log Z."""
        hidden = functional.softplus(functional.linear(v_MV, self.weight, self.hidden_bias)).sum(1)
        if self.units == "gaussian":
            return 0.5 * (v_MV - self.visible_bias).square().sum(1) - hidden
        return -(v_MV @ self.visible_bias) - hidden

    def contrast(self, v_MV: Tensor) -> Tensor:
        """A scalar with the gradient of contrastive divergence with one step, summed over frames."""
        with torch.no_grad():
            again_MV = self.visible(torch.bernoulli(self.hidden(v_MV)))
        return (self.free_energy(v_MV) - self.free_energy(again_MV)).sum()

    def reconstruction_error(self, v_MV: Tensor) -> Tensor:
        """|v - E[v | P(h | v)]|^2, (M,)."""
        return (v_MV - self.visible(self.hidden(v_MV))).square().sum(1)


class RbmStack(AcousticDnn):
    """A sigmoid network with machines as hidden layers, each on the hidden probabilities of the one below.

    Its tensors are those of the network, by the same names, plus the biases of the visible units.

    Raises:
        ValueError: the hidden units are not sigmoid.
    """

    def __init__(self, config: Dnn, inputs: int, outputs: int) -> None:
        if config.nonlinearity != "sigmoid":
            raise ValueError(f"machines have sigmoid hidden units, the network {config.nonlinearity} ones")
        super().__init__(config, inputs, outputs)
        self.visible = nn.ParameterList(nn.Parameter(torch.zeros(layer.in_features)) for layer in self.affine)
        for layer in self.affine:
            nn.init.normal_(layer.weight, std=WEIGHTS_DEVIATION)
            nn.init.uniform_(layer.bias, *HIDDEN_BIASES)

    def machine(self, number: int) -> Rbm:
        """The machine of hidden layer `number`, 0 the lowest, which alone has Gaussian visible units."""
        layer, biases = self.affine[number], list(self.visible.parameters())
        return Rbm(layer.weight, layer.bias, biases[number], "bernoulli" if number else "gaussian")

    def below(self, number: int, feats_NTF: Tensor) -> Tensor:
        """Input of machine `number` for every frame, (N, T, V): spliced features, or probabilities from below."""
        with torch.no_grad():
            v = self.spliced(feats_NTF)
            for lower in range(number):
                v = self.machine(lower).hidden(v)
        return v
