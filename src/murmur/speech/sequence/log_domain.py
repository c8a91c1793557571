"""Total probability of all paths of the numerators of a batch, in the log domain.

The recursions are those of `probability_domain` without a leak, with logarithms of alpha and beta; a state has no path
outside its frames. Numerators are small, and with few paths a frame that fits none of them must not underflow. The
recursions run in float64: the logarithms grow with the frames, and an occupancy is an exponential of their difference.

Shapes: N chunks, T frames, C pdfs, K states of the largest numerator, W arcs into or out of a state.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from murmur.speech.sequence.numerators import NEVER, Numerators
from murmur.speech.sequence.probability_domain import needs_gradient, with_gradient

IMPOSSIBLE = NEVER / 2  # no sum of scores is as small


def log_total(scores_NTC: Tensor, lengths_N: Tensor, numerators: Numerators) -> Tensor:
    """ln of the sum over all paths, (N,), with its gradient. Frames from lengths_N on are not used.

    Raises:
        ValueError: a numerator has no path.
    """
    if not needs_gradient(scores_NTC):
        _, alpha_TNK = _emitted_and_alpha(scores_NTC, numerators)
        return _totals(alpha_TNK, lengths_N).to(scores_NTC.dtype)
    return with_gradient(scores_NTC, *occupancies(scores_NTC, lengths_N, numerators))


@torch.no_grad()
def occupancies(scores_NTC: Tensor, lengths_N: Tensor, numerators: Numerators) -> tuple[Tensor, Tensor]:
    """The log totals (N,), and the probability of each pdf at each frame, (N, T, C): 0 from lengths_N on.

    Raises:
        ValueError: a numerator has no path.
    """
    emitted_TX, alpha_TNK = _emitted_and_alpha(scores_NTC, numerators)
    log_total_N, frames = _totals(alpha_TNK, lengths_N), len(alpha_TNK)
    beta_TNK = _backward(emitted_TX, lengths_N - 1, numerators).unflatten(1, (len(lengths_N), -1))
    within_TN = torch.arange(frames, device=lengths_N.device)[:, None] < lengths_N
    # Before the exponential, which may be infinite at frames that are not used.
    log_gamma_TNK = (alpha_TNK + beta_TNK - log_total_N[:, None]).masked_fill(~within_TN[..., None], NEVER)
    gamma_NTK = log_gamma_TNK.transpose(0, 1).exp().to(scores_NTC.dtype)
    index_NTK = numerators.pdf[:, None].expand(-1, frames, -1)
    gamma_NTC = torch.zeros_like(scores_NTC).scatter_add_(2, index_NTK, gamma_NTK)
    return log_total_N.to(scores_NTC.dtype), gamma_NTC


@torch.no_grad()
def _emitted_and_alpha(scores_NTC: Tensor, numerators: Numerators) -> tuple[Tensor, Tensor]:
    """Scores of the states, (T, N K), and ln alpha, (T, N, K)."""
    count, frames, _ = scores_NTC.shape
    time_T1 = torch.arange(frames, device=scores_NTC.device)[:, None]
    allowed_NTK = (time_T1 >= numerators.first[:, None]) & (time_T1 < numerators.last[:, None])
    emitted_NTK = scores_NTC.gather(2, numerators.pdf[:, None].expand(-1, frames, -1)).double()
    emitted_TX = emitted_NTK.masked_fill_(~allowed_NTK, NEVER).transpose(0, 1).flatten(1)
    return emitted_TX, _forward(emitted_TX, numerators).unflatten(1, (count, -1))


def _totals(alpha_TNK: Tensor, lengths_N: Tensor) -> Tensor:
    last_N = lengths_N - 1
    log_total_N = alpha_TNK[last_N, torch.arange(len(last_N), device=last_N.device)].logsumexp(-1)
    lost = (log_total_N < IMPOSSIBLE).nonzero().flatten().tolist()
    if lost:
        raise ValueError(f"numerators {lost} of a batch have no path: allow a larger tolerance of the alignment")
    return log_total_N


def _forward(emitted_TX: Tensor, numerators: Numerators) -> Tensor:
    """ln alpha of all states, (T, N K)."""
    found, arcs = [numerators.initial.flatten() + emitted_TX[0]], numerators.into_log
    for emitted_X in emitted_TX[1:]:
        before = functional.pad(found[-1], (0, 1), value=NEVER)
        found.append((before[numerators.into] + arcs).logsumexp(-1).add_(emitted_X).clamp_(min=NEVER))
    return torch.stack(found)


def _backward(emitted_TX: Tensor, last_N: Tensor, numerators: Numerators) -> Tensor:
    """ln beta of all states, (T, N K); 0 at the last frame of each chunk."""
    states = numerators.pdf.shape[1]
    last_X = last_N.repeat_interleave(states)
    ends, zero = set(last_N.tolist()), emitted_TX.new_zeros(())
    beta_X = torch.zeros_like(emitted_TX[0])
    found = [beta_X]
    for t in range(len(emitted_TX) - 2, -1, -1):
        after = functional.pad(beta_X + emitted_TX[t + 1], (0, 1), value=NEVER)
        beta_X = (after[numerators.out] + numerators.out_log).logsumexp(-1).clamp_(min=NEVER)
        if t in ends:
            beta_X = torch.where(last_X == t, zero, beta_X)
        found.append(beta_X)
    return torch.stack(found[::-1])
