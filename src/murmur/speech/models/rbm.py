"""Restricted Boltzmann machines, stacked, for pre-training the hidden layers of a sigmoid network.

    p(v, h) = exp(-E(v, h)) / Z
    E(v, h) = - a'v - b'h - h'W v                        v in {0,1}^V        Bernoulli visible units
            = 1/2 |v - a|^2 - b'h - h'W v                v in R^V            Gaussian ones of variance 1
    F(v)    = - log sum_h exp(-E(v, h)) = - a'v (or 1/2 |v - a|^2) - sum_j log(1 + exp(b_j + W_j v))
    CD-1:     gradient of F(v) - F(v~),  v~ = E[v | h~],  h~ ~ p(h | v)

Hinton, "Training products of experts by minimizing contrastive divergence" (2002) and "A practical guide to training
restricted Boltzmann machines" (2010); Mohamed, Dahl and Hinton, "Acoustic modeling using deep belief networks" (2012).
As in Kaldi's nnet1, the reconstruction is an expectation and not a sample.

Shapes: M frames, V visible units, H hidden ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from murmur.speech.models.dnn import AcousticDnn, Dnn

WEIGHTS_DEVIATION, HIDDEN_BIASES = 0.1, (-4.0, 0.0)  # initial values, as in Kaldi


@dataclass(frozen=True, eq=False)
class Rbm:
    """One machine: W (H, V), b (H,), a (V,), and the kind of its visible units."""

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
