"""Criteria of chunks without lattices: maximum mutual information (MMI) and minimum Bayes risk of states (sMBR).

MMI:

    F = ln sum over paths of the numerator - ln sum over paths of the denominator
    dF / d score_t(c) = gamma_num,t(c) - gamma_den,t(c)

The paths of a numerator are paths of the denominator with the same probabilities, so that F of a whole utterance is at
most 0. (A chunk may begin in the middle of either of two equal phones; a path that fits both counts twice in its
numerator.) The gradient sums to 0 over the pdfs of a frame: adding a number to all scores of a frame changes nothing,
so that log posteriors and outputs before the softmax are the same here. Povey et al., "Purely sequence-trained neural
networks for ASR based on lattice-free MMI", Interspeech 2016; Shao et al., "PyChain", Interspeech 2020.

sMBR maximises the expected number of frames whose pdf is the aligned one, over the paths of the same denominator:
R = sum over paths P(path) A(path), where A counts the frames at which the path's pdf is the reference. With alpha and
beta of `probability_domain`, divided by the sums of the frames, and acc_t(j) = 1 if the pdf of state j is the reference
at frame t, else 0, two further recursions carry the accuracy of partial paths, weighted by alpha and beta:

    alpha'_t(j) = b_t(j) [sum_i alpha'_{t-1}(i) a_ij + e pi_j sum_i alpha'_{t-1}(i)] + alpha_t(j) acc_t(j)
    beta'_t(i) = sum_j (a_ij + e pi_j) b_{t+1}(j) [beta'_{t+1}(j) + beta_{t+1}(j) acc_{t+1}(j)]

    R = sum_j alpha'_{T-1}(j)
    dR / d score_t(c) = sum over states j of pdf c of alpha'_t(j) beta_t(j) + alpha_t(j) beta'_t(j) - R gamma_t(j)

Povey and Kingsbury, "Evaluation of proposed modifications to MPE for large scale discriminative training", ICASSP 2007;
Gibson and Hain, "Hypothesis spaces for minimum Bayes risk training in large vocabulary speech recognition", 2006.

Shapes: N sequences, T frames, C pdfs, S states; X = 2 N columns, N of alpha or beta and N of the weighted accuracies.
"""

from __future__ import annotations

import torch
from torch import Tensor

from murmur.speech.sequence import log_domain, probability_domain
from murmur.speech.sequence.numerators import Numerators
from murmur.speech.sequence.probability_domain import needs_gradient, with_gradient
from murmur.speech.sequence.state_graph import StateGraph


def expected_accuracy(
    scores_NTC: Tensor, references_NT: Tensor, lengths_N: Tensor, graph: StateGraph, leak: float
) -> Tensor:
    """R of each sequence, (N,), between 0 and its number of frames, with its gradient.

    Frames from lengths_N on are not used; `references_NT` are pdfs, and may hold anything there.
    """
    if not needs_gradient(scores_NTC):  # R is the sum of the references' occupancies
        _, gamma_NTC = probability_domain.occupancies(scores_NTC, lengths_N, graph, leak)
        within_NT = torch.arange(references_NT.shape[1], device=lengths_N.device) < lengths_N[:, None]
        index_NT1 = references_NT.masked_fill(~within_NT, 0)[..., None]
        return gamma_NTC.gather(2, index_NT1)[..., 0].sum(1)
    return with_gradient(scores_NTC, *accuracies(scores_NTC, references_NT, lengths_N, graph, leak))


@torch.no_grad()
def accuracies(
    scores_NTC: Tensor, references_NT: Tensor, lengths_N: Tensor, graph: StateGraph, leak: float
) -> tuple[Tensor, Tensor]:
    """R (N,) and its derivative by the scores, (N, T, C): 0 from lengths_N on."""
    scores_TCN = scores_NTC.permute(1, 2, 0)
    emitted_TCN = (scores_TCN - scores_TCN.amax(1, keepdim=True)).exp().contiguous()
    within_TN = torch.arange(len(emitted_TCN), device=lengths_N.device)[:, None] < lengths_N
    references_TN = references_NT.T
    alpha_TSX, sums_TN = _forward(emitted_TCN, references_TN, graph, leak)
    count = len(lengths_N)
    last_SN = alpha_TSX[lengths_N - 1, :, count + torch.arange(count, device=lengths_N.device)].T
    accuracy_N = last_SN.sum(0)
    backward = _backward(emitted_TCN, references_TN, alpha_TSX, sums_TN, graph, leak, lengths_N)
    gradient_TCN = (backward[:, :, count:] - accuracy_N * backward[:, :, :count]) * within_TN[:, None]
    return accuracy_N, gradient_TCN.permute(2, 0, 1)


def _forward(emitted_TCN: Tensor, references_TN: Tensor, graph: StateGraph, leak: float) -> tuple[Tensor, Tensor]:
    """alpha and alpha' side by side, both divided by the sum of alpha of each frame; and the sums."""
    frames, _, count = emitted_TCN.shape
    alpha_TSX = emitted_TCN.new_empty(frames, graph.states, 2 * count)
    sums_TN = emitted_TCN.new_empty(frames, count)
    initial_S1 = graph.initial.to(emitted_TCN.dtype)[:, None]
    arriving_SX = torch.cat([initial_S1.expand(-1, count), torch.zeros_like(initial_S1).expand(-1, count)], 1)
    for t in range(frames):
        emitted_SN = emitted_TCN[t].index_select(0, graph.pdf)
        alpha_SX = torch.mul(arriving_SX, emitted_SN.repeat(1, 2), out=alpha_TSX[t])
        torch.sum(alpha_SX[:, :count], 0, out=sums_TN[t])
        alpha_SX /= sums_TN[t].repeat(2)
        alpha_SX[:, count:] += alpha_SX[:, :count] * (graph.pdf[:, None] == references_TN[t])
        if t + 1 < frames:
            arriving_SX = graph.into @ alpha_SX + leak * initial_S1 * alpha_SX.sum(0)
    return alpha_TSX, sums_TN


def _backward(
    emitted_TCN: Tensor,
    references_TN: Tensor,
    alpha_TSX: Tensor,
    sums_TN: Tensor,
    graph: StateGraph,
    leak: float,
    lengths_N: Tensor,
) -> Tensor:
    """By pdf, gamma and alpha' beta + alpha beta' side by side, (T, C, X)."""
    count, ends = len(lengths_N), set(lengths_N.tolist())
    found_TCX = emitted_TCN.new_empty(*emitted_TCN.shape[:2], 2 * count)
    initial_1S = graph.initial.to(emitted_TCN.dtype)[None]
    start_SX = torch.cat([torch.ones_like(alpha_TSX[0, :, :count]), torch.zeros_like(alpha_TSX[0, :, :count])], 1)
    beta_SX = start_SX
    for t in range(len(alpha_TSX) - 1, -1, -1):
        if t + 1 in ends:
            beta_SX = torch.where((lengths_N == t + 1).repeat(2), start_SX, beta_SX)
        alpha_SN, weighted_SN = alpha_TSX[t].split(count, 1)
        beta_SN, behind_SN = beta_SX.split(count, 1)
        found_TCX[t] = graph.members @ torch.cat([alpha_SN * beta_SN, weighted_SN * beta_SN + alpha_SN * behind_SN], 1)
        if t:
            share_SN = emitted_TCN[t].index_select(0, graph.pdf) / sums_TN[t]
            right_SN = beta_SN * (graph.pdf[:, None] == references_TN[t])
            left_SX = torch.cat([share_SN * beta_SN, share_SN * (behind_SN + right_SN)], 1)
            beta_SX = graph.out @ left_SX + leak * (initial_1S @ left_SX)
    return found_TCX


RANGE = 60.0  # between the pdfs of a frame: exp(60) is as good as certain, and float32 holds it


def mmi(scores_NTC: Tensor, lengths_N: Tensor, numerators: Numerators, graph: StateGraph, leak: float) -> Tensor:
    """F of each chunk, (N,). Scores more than 60 below the largest of their frame are cut, and get no gradient.

    Scores are log-likelihoods of the pdfs up to a constant in each frame; `graph` is the denominator, `leak` the weight
    of its leak.

    Raises:
        ValueError: a numerator has no path.
    """
    cut_NTC = _cut(scores_NTC)
    return log_domain.log_total(cut_NTC, lengths_N, numerators) - probability_domain.log_total(
        cut_NTC, lengths_N, graph, leak
    )


def smbr(scores_NTC: Tensor, references_NT: Tensor, lengths_N: Tensor, graph: StateGraph, leak: float) -> Tensor:
    """R of each chunk, (N,), for aligned pdfs. The other arguments are those of `mmi`, and scores are cut likewise."""
    return expected_accuracy(_cut(scores_NTC), references_NT, lengths_N, graph, leak)


def _cut(scores_NTC: Tensor) -> Tensor:
    """Scores less the largest of each frame, which changes no criterion, and at least -60."""
    with torch.no_grad():
        largest_NT1 = scores_NTC.amax(-1, keepdim=True)
    return (scores_NTC - largest_NT1).clamp(min=-RANGE)
