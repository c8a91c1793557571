"""Time delay neural networks (Waibel et al. 1989; Peddinti et al. 2015), plain and factored (Povey et al. 2018).

Shapes: feats_NTF -> logits_NUC with U = ceil(T / stack) output frames; legend: N utterances, T frames, F values per
frame, U output frames, H hidden values, K spliced offsets, B bottleneck values, C outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from murmur.speech.models.layers import (
    Convolutions,
    Kept,
    edges_repeated,
    every,
    layers_at_full_rate,
    slower,
    splice,
    through,
)

ROUNDS = 14  # of the iteration; singular values of V down to a 25th of their bound come within 1e-5 of 1


class Delays(ABC):
    """Context of a network of layers over spliced frames.

    Attributes:
        front: convolutions before the first layer; None for none.
    """

    front: Convolutions | None

    @property
    @abstractmethod
    def contexts(self) -> tuple[tuple[int, ...], ...]:
        """Frame offsets of each layer."""

    @property
    def left_frames(self) -> int:
        """Frames before t that output t depends on."""
        return self._convolved - sum(min(*offsets, 0) for offsets in self.contexts)

    @property
    def right_frames(self) -> int:
        """Frames after t that output t depends on."""
        return self._convolved + sum(max(*offsets, 0) for offsets in self.contexts)

    @property
    def _convolved(self) -> int:
        return 0 if self.front is None else self.front.frames


@dataclass(frozen=True)
class Tdnn(Delays):
    """Layers y_t = dropout(norm(relu(W [x_{t+o}: o in offsets] + b))) and one linear layer.

    A Linear over spliced frames is 1.5 times faster on a CPU than a Conv1d in float32, and three times in bfloat16.
    Frames beyond the edges of the input repeat the edge frame.

    Attributes:
        hidden: number of values per layer.
        contexts: frame offsets of each layer; the sums of the extremes are the context of the network.
        dropout: share of every layer's outputs that is set to zero during training.
        kept: values of each layer that are kept for the backward pass.
        stack: s for outputs at the frames 0, s, 2 s ... alone; the uppermost layers whose offsets are multiples of s
            compute nothing else.
    """

    hidden: int = 320
    contexts: tuple[tuple[int, ...], ...] = ((-2, -1, 0, 1, 2), (-1, 0, 1), (-3, 0, 3), (-3, 0, 3), (-3, 0, 3), (0,))
    dropout: float = 0.1
    kept: Kept = "activations"
    front: Convolutions | None = None
    stack: int = 1

    def build(self, inputs: int, outputs: int) -> AcousticTdnn:
        """A module for F = inputs features and C = outputs columns.

        Raises:
            ValueError: no layer, a layer without offsets, a stack below 1, or features that do not fit the
                convolutions.
        """
        if not self.contexts or not all(self.contexts) or self.stack < 1:
            raise ValueError(
                f"contexts {self.contexts} and stack {self.stack} need at least one layer, one offset in every layer"
                " and a stack of at least 1"
            )
        return AcousticTdnn(self, inputs, outputs)


class TdnnLayer(nn.Module):
    """One spliced linear layer with ReLU and layer normalisation, x_NTF -> y_NTH."""

    def __init__(self, inputs: int, outputs: int, offsets: tuple[int, ...]) -> None:
        super().__init__()
        self.offsets = offsets
        self.linear = nn.Linear(inputs * len(offsets), outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, x_NTF: Tensor) -> Tensor:
        """y_NTH."""
        return self.norm(functional.relu(self.linear(splice(x_NTF, self.offsets))))


class AcousticTdnn(nn.Module):
    """The module of `Tdnn`; layers from `full_rate` on compute every `stack`-th frame alone."""

    def __init__(self, config: Tdnn | TdnnF, inputs: int, outputs: int) -> None:
        super().__init__()
        front = [] if config.front is None else config.front.build(inputs)
        self.front = nn.ModuleList(front)
        self.stack, self.kept = config.stack, config.kept
        self.add_layers(config, front[-1].outputs if front else inputs)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.hidden, outputs)

    def add_layers(self, config: Any, inputs: int) -> None:
        """Make the layers between the convolutions and the output."""
        offsets = self.at_lower_rate(config.contexts)
        sizes = [inputs] + [config.hidden] * (len(offsets) - 1)
        layers = [TdnnLayer(size, config.hidden, own) for size, own in zip(sizes, offsets, strict=True)]
        self.layers = nn.ModuleList(layers)

    def at_lower_rate(self, contexts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Offsets of each layer, in frames of its own rate."""
        self.full_rate = layers_at_full_rate(contexts, self.stack)
        steps = [1 if number < self.full_rate else self.stack for number in range(len(contexts))]
        return [tuple(offset // step for offset in own) for own, step in zip(contexts, steps, strict=True)]

    def output_lengths(self, lengths_N: Tensor) -> Tensor:
        """Output frames of utterances of `lengths_N` input frames."""
        return slower(lengths_N, self.stack)

    def forward(self, feats_NTF: Tensor, lengths_N: Tensor | None = None) -> Tensor:
        """logits_NUC; with `lengths_N`, the padding repeats the last frame of each utterance, like the edges."""
        hidden = feats_NTF
        for layer in self.front:
            hidden = through(layer, self.kept, edges_repeated(hidden, lengths_N))
        hidden = self.before_layers(hidden, lengths_N)
        for number, layer in enumerate(self.layers):
            if number == self.full_rate:
                hidden, lengths_N = every(self.stack, hidden, lengths_N)
            hidden = self.above(layer, hidden, lengths_N)
        if self.full_rate == len(self.layers):
            hidden, _ = every(self.stack, hidden, lengths_N)
        return self.output(hidden)

    def before_layers(self, x_NTF: Tensor, lengths_N: Tensor | None) -> Tensor:  # noqa: ARG002 - those of subclasses
        """Input of the first of `layers`."""
        return x_NTF

    def above(self, layer: nn.Module, x_NTH: Tensor, lengths_N: Tensor | None) -> Tensor:
        """Output of a layer with its dropout."""
        return self.dropout(through(layer, self.kept, edges_repeated(x_NTH, lengths_N)))


@dataclass(frozen=True)
class TdnnF(Delays):
    """One spliced layer as in `Tdnn`, then factored layers, and one linear layer.

    A factored layer of stride s, with M semi-orthogonal (M M^T = I, see `murmur.speech.models.tdnn`):

        b_t = M [x_{t-s}; x_t]     y_t = dropout(norm(relu(W [b_t; b_{t+s}] + c)))     output_t = y_t + bypass x_t

    Frames beyond the edges of the input repeat the edge frame.

    Attributes:
        hidden: H, number of values per layer.
        bottleneck: B, number of values between the two factors.
        offsets: frame offsets of the first layer.
        strides: s of each factored layer; 0 for a layer without context.
        bypass: share of a factored layer's input that is added to its output.
        dropout: share of every layer's values that is set to zero during training, before the bypass.
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
    def contexts(self) -> tuple[tuple[int, ...], ...]:
        """Frame offsets of the first layer and of each factored one."""
        return self.offsets, *((-stride, stride) for stride in self.strides)

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


class SemiOrthogonal(nn.Module):
    """The map y = M x without bias, M M^T = I, by a parametrisation: M = (V V^T)^(-1/2) V for trainable V.

    M is the semi-orthogonal matrix nearest to V. Any V of full rank is allowed, so that M satisfies the constraint
    after each step of any optimizer and after any mean of the vectors V of several learners; the M of a mean of V is
    the projection of that mean. The iteration has a fixed number of rounds: M M^T is I to 1e-5 while the smallest
    singular value of V is at least a 25th of the bound, to 1 % at a condition of 100, and to a third at 1,000. In
    training the condition of V has stayed below 1.2. Povey et al. (2018) take one Newton-Schulz step
    M <- M - (1 / 2 a^2) (M M^T - a^2 I) M towards the constraint after every few steps of the optimizer. The iteration
    here runs to its end within the forward pass, and gradients pass through it. The scale is a = 1: the affine map
    above learns the scale.

    M does not change with the scale of V. The gradient is orthogonal to V, so that steps make V longer and later steps
    smaller in effect, as for other normalised weights; weight decay on V acts on that effect alone.

    Attributes:
        weight: V (B, D), orthonormal at first.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        if outputs > inputs:
            raise ValueError(f"{outputs} rows of {inputs} values cannot be orthonormal: make the bottleneck smaller")
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        nn.init.orthogonal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """M x."""
        return functional.linear(x, orthonormal_rows(self.weight))


def orthonormal_rows(weight_BD: Tensor) -> Tensor:
    """(V V^T)^(-1/2) V, computed in the precision of V.

    The coupled Newton-Schulz iteration for A = V V^T / c, with c a bound of the eigenvalues of V V^T:

        T_k = (3 I - Z_k Y_k) / 2     Y_k+1 = Y_k T_k     Z_k+1 = T_k Z_k     Y_0 = A, Z_0 = I, Z -> A^(-1/2)
    """
    with torch.autocast(weight_BD.device.type, enabled=False):
        gram_BB = weight_BD @ weight_BD.transpose(0, 1)
        bound = gram_BB.detach().abs().sum(1).amax()  # a constant: the limit does not depend on it
        eye_BB = torch.eye(gram_BB.shape[0], dtype=gram_BB.dtype, device=gram_BB.device)
        root_BB, inverse_BB = gram_BB / bound, eye_BB
        for _ in range(ROUNDS):
            step_BB = 1.5 * eye_BB - 0.5 * inverse_BB @ root_BB
            root_BB, inverse_BB = root_BB @ step_BB, step_BB @ inverse_BB
        return inverse_BB @ weight_BD / bound.sqrt()


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


class AcousticTdnnF(AcousticTdnn):
    """The module of `TdnnF`."""

    def add_layers(self, config: Any, inputs: int) -> None:
        """Make the first layer and the factored ones."""
        self.first = TdnnLayer(inputs, config.hidden, config.offsets)
        strides = self.at_lower_rate([(stride,) for stride in config.strides])
        self.layers = nn.ModuleList(FactoredLayer(config.hidden, config.bottleneck, stride) for (stride,) in strides)
        self.bypass = config.bypass

    def before_layers(self, x_NTF: Tensor, lengths_N: Tensor | None) -> Tensor:
        """Output of the first layer."""
        return super().above(self.first, x_NTF, lengths_N)

    def above(self, layer: nn.Module, x_NTH: Tensor, lengths_N: Tensor | None) -> Tensor:
        """Output of a factored layer with its dropout and bypass."""
        return self.dropout(through(layer, self.kept, x_NTH, lengths_N)) + self.bypass * x_NTH
