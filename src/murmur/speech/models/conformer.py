"""Conformers: self-attention with relative positions, and convolutions over time (Gulati et al. 2020).

Shapes: feats_NTF -> logits_NUC with U = ceil(T / stack) output frames; legend: N utterances, T frames, F values per
frame, U output frames, D hidden values, H heads of K = D / H values, P = 2 U - 1 distances of frames, C outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from murmur.speech.models.layers import Convolutions, Kept, edges_repeated, slower, stacked, through

SLOWEST = 10_000.0  # longest wave of the distances, in frames over 2 pi (Vaswani et al. 2017)


@dataclass(frozen=True)
class Conformer:
    """Blocks of feed-forward, attention and convolution modules, each beside an identity, and one linear layer.

        x_1 = dropout(W [frames of one stack] + b)
        a = x + 1/2 ffn(x)     b = a + attention(a)     c = b + convolution(b)     output = norm(c + 1/2 ffn'(c))
        ffn(x) = dropout(W_2 dropout(swish(W_1 norm(x))))
        convolution(x) = dropout(W_4 swish(norm(depthwise(glu(W_3 norm(x))))))

    All norms are layer normalisations, also that of the convolution module, where the paper has batch normalisation:
    means of the weights of several learners then need no statistics, and an utterance does not depend on others.

    Attributes:
        hidden: D, number of values per frame; even, and a multiple of `heads`.
        layers: number of blocks.
        heads: H, number of attention heads.
        kernel: output frames of a depthwise filter, an odd number.
        expansion: width of a feed-forward module, in multiples of `hidden`.
        reach: output frames before and after a frame that attention reads; None for the whole utterance.
        dropout: share of values, and of attention weights, that is set to zero during training.
        front: convolutions before the first layer; None for none.
        kept: values of each block that are kept for the backward pass.
        stack: number of frames joined into one, which divides the frame rate.
    """

    hidden: int = 144
    layers: int = 4
    heads: int = 4
    kernel: int = 15
    expansion: int = 4
    reach: int | None = None
    dropout: float = 0.1
    front: Convolutions | None = None
    kept: Kept = "activations"
    stack: int = 1

    def build(self, inputs: int, outputs: int) -> AcousticConformer:
        """A module for F = inputs features and C = outputs columns.

        Raises:
            ValueError: sizes that do not fit together, or features that do not fit the convolutions.
        """
        least = min(self.hidden, self.layers, self.heads, self.kernel, self.expansion, self.stack)
        if least < 1 or self.hidden % 2 or self.hidden % self.heads or self.kernel % 2 == 0 or (self.reach or 0) < 0:
            raise ValueError(
                f"{self} needs sizes of at least 1, an even hidden size that is a multiple of heads, an odd kernel and"
                " no negative reach"
            )
        return AcousticConformer(self, inputs, outputs)


class AcousticConformer(nn.Module):
    """The module of `Conformer`. It has no buffers."""

    def __init__(self, config: Conformer, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stack, self.reach, self.hidden = config.stack, config.reach, config.hidden
        self.kept: Kept = config.kept
        front = [] if config.front is None else config.front.build(inputs)
        self.front = nn.ModuleList(front)
        self.input = nn.Linear((front[-1].outputs if front else inputs) * config.stack, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(ConformerBlock(config) for _ in range(config.layers))
        self.output = nn.Linear(config.hidden, outputs)

    def output_lengths(self, lengths_N: Tensor) -> Tensor:
        """Output frames of utterances of `lengths_N` input frames."""
        return slower(lengths_N, self.stack)

    def forward(self, feats_NTF: Tensor, lengths_N: Tensor | None = None) -> Tensor:
        """logits_NUC; without `lengths_N` every utterance fills all T frames."""
        if lengths_N is not None:
            lengths_N = lengths_N.to(feats_NTF.device)
        for layer in self.front:
            feats_NTF = through(layer, self.kept, edges_repeated(feats_NTF, lengths_N))
        feats_NTF = without(padding(feats_NTF, lengths_N), feats_NTF)
        x_NUD = self.dropout(self.input(stacked(feats_NTF, self.stack)))
        padding_NU1 = padding(x_NUD, None if lengths_N is None else self.output_lengths(lengths_N))
        waves_PD, unseen_NUU = waves(x_NUD), unseen(x_NUD, padding_NU1, self.reach)
        for block in self.blocks:
            x_NUD = through(block, self.kept, x_NUD, waves_PD, unseen_NUU, padding_NU1)
        return self.output(x_NUD)


class ConformerBlock(nn.Module):
    """One block of `Conformer`, x_NUD -> y_NUD."""

    def __init__(self, config: Conformer) -> None:
        super().__init__()
        self.before, self.after = (feed_forward(config) for _ in range(2))
        self.attention_norm, self.norm = (nn.LayerNorm(config.hidden) for _ in range(2))
        self.attention = RelativeAttention(config.hidden, config.heads, config.dropout)
        self.convolution = ConvolutionModule(config.hidden, config.kernel)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_NUD: Tensor, waves_PD: Tensor, unseen_NUU: Tensor | None, padding_NU1: Tensor | None) -> Tensor:
        """y_NUD."""
        x_NUD = x_NUD + 0.5 * self.before(x_NUD)
        x_NUD = x_NUD + self.dropout(self.attention(self.attention_norm(x_NUD), waves_PD, unseen_NUU))
        x_NUD = x_NUD + self.dropout(self.convolution(x_NUD, padding_NU1))
        return self.norm(x_NUD + 0.5 * self.after(x_NUD))


def feed_forward(config: Conformer) -> nn.Sequential:
    """The module dropout(W_2 dropout(swish(W_1 norm(x))))."""
    wide = config.hidden * config.expansion
    return nn.Sequential(
        nn.LayerNorm(config.hidden),
        nn.Linear(config.hidden, wide),
        nn.SiLU(),
        nn.Dropout(config.dropout),
        nn.Linear(wide, config.hidden),
        nn.Dropout(config.dropout),
    )


class RelativeAttention(nn.Module):
    """Self-attention that knows distances of frames (Dai et al., Transformer-XL, 2019), x_NUD -> y_NUD.

        [q_i; k_i; v_i] = W_i x_i + b     p_d = W_p wave(d)     each split into H heads
        e_ij = ((q_i + u)' k_j + (q_i + w)' p_{i-j}) / sqrt(K)     y_i = W_o [sum_j softmax_j(e_ij) v_j: heads] + c

    Attributes:
        content_bias: u (H, K), that of all queries for contents.
        position_bias: w (H, K), that of all queries for distances.
    """

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.size, self.dropout = heads, hidden // heads, nn.Dropout(dropout)
        self.inner = nn.Linear(hidden, 3 * hidden)
        self.positions = nn.Linear(hidden, hidden, bias=False)
        self.content_bias, self.position_bias = (nn.Parameter(torch.zeros(heads, self.size)) for _ in range(2))
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x_NUD: Tensor, waves_PD: Tensor, unseen_NUU: Tensor | None = None) -> Tensor:
        """y_NUD; frame i does not read frame j where `unseen_NUU` is True."""
        query_NHUK, key_NHUK, value_NHUK = (self._split(part) for part in self.inner(x_NUD).chunk(3, -1))
        places_HKP = self._split(self.positions(waves_PD)).transpose(1, 2)
        by_distance_NHUP = (query_NHUK + self.position_bias[:, None]) @ places_HKP
        contents_NHUU = (query_NHUK + self.content_bias[:, None]) @ key_NHUK.transpose(2, 3)
        scores_NHUU = (contents_NHUU + by_frame(by_distance_NHUP)) / math.sqrt(self.size)
        if unseen_NUU is not None:
            scores_NHUU = scores_NHUU.masked_fill(unseen_NUU[:, None], -math.inf)
        mean_NHUK = self.dropout(scores_NHUU.softmax(-1)) @ value_NHUK
        return self.output(mean_NHUK.transpose(1, 2).flatten(2))

    def _split(self, x_UD: Tensor) -> Tensor:
        """(..., H, U, K) of (..., U, D)."""
        return x_UD.reshape(*x_UD.shape[:-1], self.heads, self.size).transpose(-3, -2)


class ConvolutionModule(nn.Module):
    """W_4 swish(norm(depthwise(glu(W_3 norm(x))))), x_NUD -> y_NUD; beyond the edges of an utterance stand zeros."""

    def __init__(self, hidden: int, kernel: int) -> None:
        super().__init__()
        self.norm, self.inner_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.wide, self.narrow = nn.Linear(hidden, 2 * hidden), nn.Linear(hidden, hidden)
        self.depthwise = nn.Conv1d(hidden, hidden, kernel, padding=kernel // 2, groups=hidden)

    def forward(self, x_NUD: Tensor, padding_NU1: Tensor | None = None) -> Tensor:
        """y_NUD; frames where `padding_NU1` is True count as zeros for the frames beside them."""
        gated_NUD = without(padding_NU1, functional.glu(self.wide(self.norm(x_NUD)), -1))
        filtered_NUD = self.depthwise(gated_NUD.transpose(1, 2)).transpose(1, 2)
        return self.narrow(functional.silu(self.inner_norm(filtered_NUD)))


def waves(x_NUD: Tensor) -> Tensor:
    """Waves of the distances U - 1, U - 2 ... 1 - U, (P, D), in the precision of x: all sines, then all cosines.

    wave(d) = [sin(d w_m), cos(d w_m): m = 0 .. D/2 - 1],  w_m = 10000^(-2m / D)
    """
    frames, hidden = x_NUD.shape[1:]
    distances_P = torch.arange(frames - 1, -frames, -1, device=x_NUD.device, dtype=torch.float32)
    rates = torch.arange(0, hidden, 2, device=x_NUD.device, dtype=torch.float32) * (-math.log(SLOWEST) / hidden)
    angles = distances_P[:, None] * rates.exp()
    return torch.cat([angles.sin(), angles.cos()], 1).to(x_NUD.dtype)


def by_frame(by_distance_NHUP: Tensor) -> Tensor:
    """(N, H, U, U), of frame i its values for the distances i - j of all frames j; those of the input fall from U - 1.

    Frame i needs the columns U - 1 - i .. 2 U - 2 - i. One more column at the left makes rows of 2 U values; read in
    rows of 2 U - 1 values from place U on, each row begins one column earlier than the row before.
    """
    *rows, frames, distances = by_distance_NHUP.shape
    longer = functional.pad(by_distance_NHUP, (1, 0)).reshape(*rows, distances + 1, frames)
    return longer[..., 1:, :].reshape(*rows, frames, distances)[..., :frames]


def padding(x_NUD: Tensor, lengths_N: Tensor | None) -> Tensor | None:
    """(N, U, 1), True from the end of each utterance on; None if all frames are of utterances."""
    if lengths_N is None:
        return None
    return (torch.arange(x_NUD.shape[1], device=x_NUD.device)[None] >= lengths_N[:, None])[..., None]


def without(padding_NU1: Tensor | None, x_NUD: Tensor) -> Tensor:
    """x with zeros as padding."""
    return x_NUD if padding_NU1 is None else x_NUD.masked_fill(padding_NU1, 0.0)


def unseen(x_NUD: Tensor, padding_NU1: Tensor | None, reach: int | None) -> Tensor | None:
    """(N or 1, U, U), True where frame i must not read frame j; None if each frame reads all.

    Each frame reads itself, so that the weights of padding are numbers too.
    """
    if padding_NU1 is None and reach is None:
        return None
    frames_U = torch.arange(x_NUD.shape[1], device=x_NUD.device)
    distances_1UU = (frames_U[:, None] - frames_U).abs()[None]
    unseen_NUU = torch.zeros_like(distances_1UU, dtype=torch.bool) if reach is None else distances_1UU > reach
    return unseen_NUU if padding_NU1 is None else (unseen_NUU | padding_NU1.transpose(1, 2)) & (distances_1UU > 0)
