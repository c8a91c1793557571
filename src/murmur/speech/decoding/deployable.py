"""Networks for other runtimes: unnormalised features in, log-probabilities or scores of a graph out.

Normalisation, softmax, prior, acoustic scale and the order of the columns are included. Shapes: feats_NTF, N
utterances of up to T frames, lengths_N; scores_NUL with U = ceil(T / stack) output frames and L columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from murmur.speech.features.analysis import delta_kernels
from murmur.speech.features.cmvn import SMALLEST_DEVIATION, Columns
from murmur.speech.models.recurrent import AcousticLstm


class UtteranceCmvn(nn.Module):
    """(x - mean) / deviation over each utterance's own frames, in float64 as in training; padding becomes 0."""

    def forward(self, feats_NTF: Tensor, lengths_N: Tensor) -> Tensor:
        """Normalised feats_NTF."""
        wide_NTF = feats_NTF.double()
        spoken_NT1 = spoken(feats_NTF, lengths_N).double()
        frames_N11 = lengths_N.double()[:, None, None].clamp(min=1.0)
        mean_N1F = (wide_NTF * spoken_NT1).sum(1, keepdim=True) / frames_N11
        centred_NTF = (wide_NTF - mean_N1F) * spoken_NT1
        variance_N1F = (centred_NTF * centred_NTF).sum(1, keepdim=True) / frames_N11
        return (centred_NTF / variance_N1F.clamp(min=SMALLEST_DEVIATION**2).sqrt()).float()


class FixedCmvn(nn.Module):
    """(x - mean) / deviation with statistics of the training set, (F,) each; padding becomes 0."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean_F: np.ndarray, deviation_F: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(np.asarray(mean_F, np.float32)))
        self.register_buffer("deviation", torch.from_numpy(np.asarray(deviation_F, np.float32)))

    def forward(self, feats_NTF: Tensor, lengths_N: Tensor) -> Tensor:
        """Normalised feats_NTF."""
        return (feats_NTF - self.mean) / self.deviation * spoken(feats_NTF, lengths_N)


class NoCmvn(nn.Module):
    """Features as they are; padding becomes 0."""

    def forward(self, feats_NTF: Tensor, lengths_N: Tensor) -> Tensor:
        """feats_NTF."""
        return feats_NTF * spoken(feats_NTF, lengths_N)


class JoinedInput(nn.Module):
    """Normalised features with derivatives, and an i-vector in all frames: (N, T, (order + 1) F + I); padding is 0.

    Attributes:
        cmvn: normalisation.
        ivector: (I,) i-vector of utterances that come without one.
        normalised: columns that are normalised: "static" before derivatives are appended, "all" after that.
    """

    ivector: Tensor

    def __init__(self, cmvn: nn.Module, order: int, ivector_I: np.ndarray, normalised: Columns = "static") -> None:
        super().__init__()
        self.cmvn, self.normalised = cmvn, normalised
        self.kernels = [torch.from_numpy(kernel.astype(np.float32)) for kernel in delta_kernels(order)]
        self.register_buffer("ivector", torch.from_numpy(np.asarray(ivector_I, np.float32)))

    def forward(self, feats_NTF: Tensor, lengths_N: Tensor, ivector_NI: Tensor | None = None) -> Tensor:
        """Input of the network; `ivector_NI` are the i-vectors of the utterances."""
        if self.normalised == "all":
            spectrum_NTC = self.cmvn(self._with_derivatives(feats_NTF, lengths_N), lengths_N)
        else:
            spectrum_NTC = self._with_derivatives(self.cmvn(feats_NTF, lengths_N), lengths_N)
        own_NI = self.ivector[None] if ivector_NI is None else ivector_NI
        spoken_NT1 = spoken(feats_NTF, lengths_N)
        return torch.cat([spectrum_NTC * spoken_NT1, own_NI[:, None] * spoken_NT1], 2)

    def _with_derivatives(self, feats_NTF: Tensor, lengths_N: Tensor) -> Tensor:
        return torch.cat([feats_NTF, *(self._filtered(feats_NTF, lengths_N, kernel) for kernel in self.kernels)], 2)

    def _filtered(self, feats_NTF: Tensor, lengths_N: Tensor, kernel_K: Tensor) -> Tensor:
        """sum_k kernel_k x_{t + k - K // 2}, with the edge frames of each utterance repeated."""
        frames_T, edge = torch.arange(feats_NTF.shape[1], device=feats_NTF.device), len(kernel_K) // 2
        last_N1 = (lengths_N - 1).clamp(min=0)[:, None]
        total_NTF = torch.zeros_like(feats_NTF)
        for k in range(len(kernel_K)):
            at_NT = torch.minimum((frames_T + k - edge).clamp(min=0)[None], last_N1)
            total_NTF = total_NTF + kernel_K[k] * feats_NTF.gather(1, at_NT[..., None].expand_as(feats_NTF))
        return total_NTF


def spoken(feats_NTF: Tensor, lengths_N: Tensor) -> Tensor:
    """(N, T, 1): 1 on frames of the utterance, 0 on padding."""
    frames = torch.arange(feats_NTF.shape[1], device=feats_NTF.device)
    return (frames[None] < lengths_N[:, None])[..., None].to(feats_NTF.dtype)


class ScoreNetwork(nn.Module):
    """The scores that a search reads, scale (log softmax(logits) - log prior), in the selected columns.

    Args:
        outputs: number C of logits.
        log_prior: (C,) ln p(pdf), subtracted; None for CTC.
        columns: (L,) the network's column of each output column; None for all in their order.
        scale: acoustic scale, a factor of the scores.
    """

    log_prior: Tensor
    columns: Tensor

    def __init__(
        self, outputs: int, log_prior: Tensor | None = None, columns: np.ndarray | None = None, scale: float = 1.0
    ) -> None:
        super().__init__()
        prior = torch.zeros(outputs) if log_prior is None else log_prior.detach().float().clone()
        columns = np.arange(outputs) if columns is None else columns
        if prior.shape != (outputs,) or not len(columns) or columns.min() < 0 or columns.max() >= outputs:
            raise ValueError(
                f"the network has {outputs} outputs, but the prior has {len(prior)} and the graph reads columns up "
                f"to {columns.max(initial=-1)}: model and graph do not belong together"
            )
        self.register_buffer("log_prior", prior)
        self.register_buffer("columns", torch.from_numpy(columns.astype(np.int64)))
        self.scale = scale
        self.in_order = bool(len(columns) == outputs and (columns == np.arange(outputs)).all())

    @property
    def width(self) -> int:
        """L."""
        return len(self.columns)

    def forward(self, logits_NUC: Tensor) -> Tensor:
        """scores_NUL."""
        scores_NUC = (logits_NUC.log_softmax(-1) - self.log_prior) * self.scale
        return scores_NUC if self.in_order else scores_NUC.index_select(2, self.columns)


class WholeUtterances(nn.Module):
    """x (N, T, F) float32 and x_lens (N,) int64 to log_probs (N, U, L) and log_probs_lens (N,).

    With `ivector_values` = I above 0, `ivector` (N, I) float32 is a third input, which a `JoinedInput` takes.
    """

    def __init__(self, cmvn: nn.Module, network: nn.Module, scores: ScoreNetwork, ivector_values: int = 0) -> None:
        super().__init__()
        self.cmvn, self.network, self.scores, self.ivector_values = cmvn, network, scores, ivector_values
        self.output_lengths: Callable[[Tensor], Tensor] = network.output_lengths  # type: ignore[assignment]

    def forward(self, x: Tensor, x_lens: Tensor, ivector: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores, and the number of frames of each utterance."""
        own = () if ivector is None else (ivector,)
        logits_NUC = self.network(self.cmvn(x, x_lens, *own), x_lens)
        return self.scores(logits_NUC), self.output_lengths(x_lens)


class StreamedChunks(nn.Module):
    """A one-directional LSTM run in chunks: its states come in and go out, (layers, N, cells) each.

    A chunk is any multiple of `stack` frames; only a stream's last one may be shorter than its T (x_lens).
    """

    def __init__(self, cmvn: nn.Module, network: nn.Module, scores: ScoreNetwork) -> None:
        super().__init__()
        why_not = why_no_stream(network, cmvn)
        if why_not or not isinstance(network, AcousticLstm):
            raise ValueError(why_not)
        self.cmvn, self.network, self.scores = cmvn, network, scores
        self.stack = network.stack

    def first_states(self, streams: int = 1) -> tuple[Tensor, Tensor]:
        """h and c before the first chunk: zeros."""
        layer = self.network.forwards[0]
        assert isinstance(layer, nn.LSTM)
        zeros = torch.zeros(len(self.network.forwards), streams, layer.hidden_size)
        return zeros, zeros.clone()

    def forward(self, x: Tensor, x_lens: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """log_probs, log_probs_lens, and h and c for the next chunk."""
        normal = self.cmvn(x, x_lens)
        streams, frames, values = normal.shape
        hidden = normal.reshape(streams, frames // self.stack, values * self.stack)
        heads, cells = [], []
        for number, layer in enumerate(self.network.forwards):
            hidden, (head, cell) = layer(hidden, (h[number : number + 1], c[number : number + 1]))
            heads.append(head)
            cells.append(cell)
        network = self.network
        logits = network.output(hidden if network.bottleneck is None else network.bottleneck(hidden))
        return self.scores(logits), network.output_lengths(x_lens), torch.cat(heads), torch.cat(cells)


def why_no_stream(network: nn.Module, cmvn: nn.Module) -> str | None:
    """Reason why a network cannot run chunk by chunk; None if it can."""
    if not isinstance(network, AcousticLstm) or len(network.backwards):
        return (
            f"a {type(network).__name__} cannot be streamed: only one-directional LSTMs need no future frames; "
            "train with task.network=Lstm(...)"
        )
    if isinstance(cmvn, JoinedInput) and cmvn.kernels:
        return "derivatives need future frames: train with task.front.input.deltas=0"
    if isinstance(cmvn.cmvn if isinstance(cmvn, JoinedInput) else cmvn, UtteranceCmvn):
        return (
            "the mean and variance of an utterance are known only at its end: choose --cmvn global, which uses those "
            "of the training set"
        )
    return None


def why_not_onnx(network: nn.Module) -> str | None:
    """Reason why a network cannot be written as ONNX; None if it can."""
    if isinstance(network, AcousticLstm) and any(getattr(layer, "proj_size", 0) for layer in network.forwards):
        return (
            "LSTM layers with a projection have no ONNX operator: train with task.network.projection=None (a "
            "bottleneck below the output is fine)"
        )
    if not hasattr(network, "output_lengths"):
        return f"a {type(network).__name__} has no output_lengths: only murmur's acoustic models are exported"
    return None


def outputs_of(network: nn.Module) -> int:
    """C, the columns of a network's logits."""
    output = getattr(network, "output", None)
    if not isinstance(output, nn.Linear):
        raise ValueError(f"a {type(network).__name__} has no linear output layer: only acoustic models are exported")
    return output.out_features


def random_batches(values: int, stack: int, seed: int = 0) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Inputs for comparing an export with the network: one frame, few, many, and utterances of all lengths.

    The values have the mean and spread of log-mel energies; padding is not 0, so that errors in masking show.
    """
    generator = torch.Generator().manual_seed(seed)

    def batch(*lengths: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(len(lengths), max(lengths), values, generator=generator) * 3.0 - 8.0
        return x, torch.tensor(lengths)

    return {
        "one frame": batch(1),
        "two frames": batch(2),
        "one stack and one": batch(stack + 1),
        "half a minute": batch(3001),
        "unequal lengths": batch(1, 97, 2, 200, 3 * stack),
    }
