"""Criteria of chunks without lattices: maximum mutual information (MMI) and minimum Bayes risk of states (sMBR).

MMI:

    F = ln sum over paths of the numerator - ln sum over paths of the denominator
    dF / d score_t(c) = gamma_num,t(c) - gamma_den,t(c)

The paths of a numerator are paths of the denominator with the same probabilities, so that F of a whole utterance is at
most 0. (A chunk may begin in the middle of either of two equal phones; a path that fits both counts twice in its
numerator.) The gradient sums to 0 over the pdfs of a frame: adding a number to all scores of a frame changes nothing,
so that log posteriors and outputs before the softmax are the same here. Povey et al., "Purely sequence-trained neural
networks for ASR based on lattice-free MMI", Interspeech 2016; Shao et al., "PyChain", Interspeech 2020.

sMBR maximises the expected number of frames whose pdf is the aligned one, over the paths of the same denominator.

Shapes: N chunks, T frames, C pdfs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from murmur.speech.sequence import log_domain, probability_domain
from murmur.speech.sequence.expected_accuracy import expected_accuracy
from murmur.speech.sequence.numerators import Numerators
from murmur.speech.sequence.state_graph import StateGraph

RANGE = 60.0  # between the pdfs of a frame: exp(60) is as good as certain, and float32 holds it


def mmi(scores_NTC: Tensor, lengths_N: Tensor, numerators: Numerators, graph: StateGraph, leak: float) -> Tensor:
    """F of each chunk, (N,). Scores more than 60 below the largest of their frame are cut, and get no gradient.

    Args:
        scores_NTC: log-likelihoods of the pdfs, float32 or float64, up to a constant in each frame.
        lengths_N: number of frames of each chunk.
        numerators: numerators of the chunks.
        graph: the denominator.
        leak: weight of the denominator's leak.

    Raises:
        ValueError: a numerator has no path.
    """
    cut_NTC = _cut(scores_NTC)
    return log_domain.log_total(cut_NTC, lengths_N, numerators) - probability_domain.log_total(
        cut_NTC, lengths_N, graph, leak
    )


def smbr(scores_NTC: Tensor, references_NT: Tensor, lengths_N: Tensor, graph: StateGraph, leak: float) -> Tensor:
    """Expected number of correct frames of each chunk, (N,). Scores are cut as in `mmi`.

    Args:
        scores_NTC: as for `mmi`.
        references_NT: the aligned pdfs; anything from lengths_N on.
        lengths_N: number of frames of each chunk.
        graph: the denominator.
        leak: weight of the denominator's leak.
    """
    return expected_accuracy(_cut(scores_NTC), references_NT, lengths_N, graph, leak)


def _cut(scores_NTC: Tensor) -> Tensor:
    """Scores less the largest of each frame, which changes no criterion, and at least -60."""
    with torch.no_grad():
        largest_NT1 = scores_NTC.amax(-1, keepdim=True)
    return (scores_NTC - largest_NT1).clamp(min=-RANGE)
