"""Criteria of chunks without lattices: maximum mutual information (MMI) and minimum Bayes risk of states (sMBR).

MMI:

    F = ln sum over paths of the numerator - ln sum over paths of the denominator
    dF / d score_t(c) = gamma_num,t(c) - gamma_den,t(c)

F is at most 0, since the paths of a numerator are paths of the denominator with the same probabilities. The gradient
sums to 0 over the pdfs of a frame: adding a number to all scores of a frame changes nothing, so that log posteriors and
outputs before the softmax are the same here. Povey et al., "Purely sequence-trained neural networks for ASR based on
lattice-free MMI", Interspeech 2016; Shao et al., "PyChain", Interspeech 2020.

sMBR maximises the expected number of frames whose pdf is the aligned one, over the paths of the same denominator.

Shapes: N chunks, T frames, C pdfs.
"""

from __future__ import annotations

from torch import Tensor

from murmur.speech.sequence import log_domain, probability_domain
from murmur.speech.sequence.expected_accuracy import expected_accuracy
from murmur.speech.sequence.numerators import Numerators
from murmur.speech.sequence.state_graph import StateGraph

LIMIT = 30.0  # scores are cut to +-30: exp(60) between two pdfs of a frame is as good as certain


def mmi(scores_NTC: Tensor, lengths_N: Tensor, numerators: Numerators, graph: StateGraph, leak: float) -> Tensor:
    """F of each chunk, (N,). Scores beyond +-30 are cut, and get no gradient.

    Args:
        scores_NTC: log-likelihoods of the pdfs, float32 or float64, up to a constant in each frame.
        lengths_N: number of frames of each chunk.
        numerators: numerators of the chunks.
        graph: the denominator.
        leak: weight of the denominator's leak.

    Raises:
        ValueError: a numerator has no path.
    """
    cut_NTC = scores_NTC.clamp(-LIMIT, LIMIT)
    return log_domain.log_total(cut_NTC, lengths_N, numerators) - probability_domain.log_total(
        cut_NTC, lengths_N, graph, leak
    )


def smbr(scores_NTC: Tensor, references_NT: Tensor, lengths_N: Tensor, graph: StateGraph, leak: float) -> Tensor:
    """Expected number of correct frames of each chunk, (N,). Scores beyond +-30 are cut, and get no gradient.

    Args:
        scores_NTC: as for `mmi`.
        references_NT: the aligned pdfs; anything from lengths_N on.
        lengths_N: number of frames of each chunk.
        graph: the denominator.
        leak: weight of the denominator's leak.
    """
    return expected_accuracy(scores_NTC.clamp(-LIMIT, LIMIT), references_NT, lengths_N, graph, leak)
