"""Total probability of all paths of a graph, for a batch of sequences, in the probability domain.

With emissions b_t(j) = exp(score of the pdf of state j at frame t), arcs a_ij, initial probabilities pi_j and a leak e
from every state to all states (the "leaky HMM" of Povey et al. 2016):

    alpha_0(j) = pi_j b_0(j)     alpha_t(j) = b_t(j) [sum_i alpha_{t-1}(i) a_ij + e pi_j sum_i alpha_{t-1}(i)]
    beta_{T-1}(i) = 1            beta_t(i) = sum_j a_ij b_{t+1}(j) beta_{t+1}(j) + e sum_j pi_j b_{t+1}(j) beta_{t+1}(j)

The total is Z = sum_j alpha_{T-1}(j). Each frame's alpha is divided by its sum, whose logarithms add up to ln Z, and
beta by the same sums, so that gamma_t(j) = alpha_t(j) beta_t(j) is the probability of state j at frame t, which is the
derivative of ln Z by its score. A frame costs two products with a sparse (S, S) matrix, and one with (C, S).

Shapes: N sequences, T frames, C pdfs, S states.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from murmur.speech.sequence.state_graph import StateGraph


def needs_gradient(scores_NTC: Tensor) -> bool:
    """True if the occupancies will be asked for; without them a criterion needs its forward recursion alone."""
    return torch.is_grad_enabled() and scores_NTC.requires_grad


def with_gradient(scores_NTC: Tensor, value_N: Tensor, gradient_NTC: Tensor) -> Tensor:
    """Return a value of each sequence (N,), such as ln Z, as a function of the scores, with a known gradient."""
    found: Tensor = _Known.apply(scores_NTC, value_N, gradient_NTC)
    return found


class _Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _scores_NTC: Tensor, value_N: Tensor, gradient_NTC: Tensor) -> Tensor:
        ctx.save_for_backward(gradient_NTC)
        return value_N.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_NTC,) = ctx.saved_tensors
        return gradients[0][:, None, None] * gradient_NTC, None, None


def log_total(scores_NTC: Tensor, lengths_N: Tensor, graph: StateGraph, leak: float) -> Tensor:
    """ln Z of each sequence, (N,), with its gradient. Frames from lengths_N on are not used.

    Scores may be of any size; a range of more than about 80 within a frame loses the smallest in float32.
    """
    if not needs_gradient(scores_NTC):
        return _emitted_and_alpha(scores_NTC, lengths_N, graph, leak)[-1]
    return with_gradient(scores_NTC, *occupancies(scores_NTC, lengths_N, graph, leak))


@torch.no_grad()
def occupancies(scores_NTC: Tensor, lengths_N: Tensor, graph: StateGraph, leak: float) -> tuple[Tensor, Tensor]:
    """ln Z (N,), and gamma summed over the states of each pdf, (N, T, C): 0 from lengths_N on."""
    emitted_TCN, alpha_TSN, sums_TN, log_total_N = _emitted_and_alpha(scores_NTC, lengths_N, graph, leak)
    gamma_TCN = _backward(emitted_TCN, alpha_TSN, sums_TN, lengths_N, graph, leak)
    return log_total_N, (gamma_TCN * _within(len(sums_TN), lengths_N)[:, None]).permute(2, 0, 1)


@torch.no_grad()
def _emitted_and_alpha(
    scores_NTC: Tensor, lengths_N: Tensor, graph: StateGraph, leak: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Emissions over the largest of each frame, alpha over its sums, the sums, and ln Z."""
    scores_TCN = scores_NTC.permute(1, 2, 0)
    largest_TN = scores_TCN.amax(1)
    emitted_TCN = (scores_TCN - largest_TN[:, None]).exp().contiguous()
    alpha_TSN, sums_TN = _forward(emitted_TCN, graph, leak)
    log_total_N = ((sums_TN.log() + largest_TN) * _within(len(sums_TN), lengths_N)).sum(0)
    return emitted_TCN, alpha_TSN, sums_TN, log_total_N


def _within(frames: int, lengths_N: Tensor) -> Tensor:
    """(T, N) True for the frames of each sequence."""
    return torch.arange(frames, device=lengths_N.device)[:, None] < lengths_N


def _forward(emitted_TCN: Tensor, graph: StateGraph, leak: float) -> tuple[Tensor, Tensor]:
    """alpha divided by the sum of each frame, and the sums."""
    frames, _, count = emitted_TCN.shape
    alpha_TSN = emitted_TCN.new_empty(frames, graph.states, count)
    sums_TN = emitted_TCN.new_empty(frames, count)
    initial_S1 = graph.initial.to(emitted_TCN.dtype)[:, None]
    arriving_SN = initial_S1.expand(-1, count)
    for t in range(frames):
        alpha_SN = torch.mul(arriving_SN, emitted_TCN[t].index_select(0, graph.pdf), out=alpha_TSN[t])
        torch.sum(alpha_SN, 0, out=sums_TN[t])
        alpha_SN /= sums_TN[t]
        if t + 1 < frames:
            arriving_SN = (graph.into @ alpha_SN).add_(initial_S1, alpha=leak)
    return alpha_TSN, sums_TN


def _backward(
    emitted_TCN: Tensor, alpha_TSN: Tensor, sums_TN: Tensor, lengths_N: Tensor, graph: StateGraph, leak: float
) -> Tensor:
    """gamma by pdf; frames from lengths_N on hold values without meaning."""
    gamma_TCN = torch.empty_like(emitted_TCN)
    initial_1S = graph.initial.to(emitted_TCN.dtype)[None]
    beta_SN = torch.ones_like(alpha_TSN[0])
    one, ends = beta_SN.new_ones(()), set(lengths_N.tolist())
    for t in range(len(alpha_TSN) - 1, -1, -1):
        if t + 1 in ends:
            beta_SN = torch.where(lengths_N == t + 1, one, beta_SN)
        gamma_TCN[t] = graph.members @ (alpha_TSN[t] * beta_SN)
        if t:
            beta_SN *= emitted_TCN[t].index_select(0, graph.pdf)
            beta_SN /= sums_TN[t]
            beta_SN = (graph.out @ beta_SN).add_(initial_1S @ beta_SN, alpha=leak)
    return gamma_TCN
