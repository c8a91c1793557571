"""Rows of the mixing matrices T_k of decentralised SGD: weights with which learners average.

    w_i  <-  sum_j T_ij w_j,     T symmetric, rows and columns sum to 1

A mixing is a pure function of the round, the live learners, and the learner that asks. All learners evaluate it alike,
without negotiation. Random mixings are seeded by the round's number. Cui et al. 2021 (arXiv 2110.11199), Zhang et al.
2020 (arXiv 2002.01119), Lian et al. 2018 (arXiv 1710.06952).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

Row = dict[int, float]
Mixing = Callable[[int, Sequence[int], int], Row]  # (round k, live learners, learner i) -> row i of T_k


def uniform(k: int, view: Sequence[int], learner: int) -> Row:  # noqa: ARG001 - the same for all, in every round
    """T = 1/L everywhere: the global mean."""
    return {j: 1 / len(view) for j in view}


def ring(k: int, view: Sequence[int], learner: int) -> Row:  # noqa: ARG001 - the same ring in every round
    """One third each for the learner, its left and its right neighbour (one half each for two learners)."""
    at, size = view.index(learner), len(view)
    peers = sorted({view[(at - 1) % size], learner, view[(at + 1) % size]})
    return {j: 1 / len(peers) for j in peers}


def randomized_ring(k: int, view: Sequence[int], learner: int) -> Row:
    """T_k = P_k' T_ring P_k: a ring through a new random order of the learners in every round."""
    return ring(k, _shuffled(k, tuple(view)), learner)


def pairwise(k: int, view: Sequence[int], learner: int) -> Row:
    """One half each for a learner and one neighbour: even positions pair to the right in even rounds, left in odd ones.

    With an odd number of learners a different one sits out in each round.
    """
    return _matched(k, view, learner, hop=1 if k % 2 == 0 else -1)


def exponential(k: int, view: Sequence[int], learner: int) -> Row:
    """One half each on the bipartite exponential graph: even positions pair with those 1, 3, 5, 9, ... (1 + 2^i) on."""
    size = len(view) - len(view) % 2
    hops = [1, *(1 + 2**i for i in range(1, max(1, size).bit_length()) if 1 + 2**i < size)]
    return _matched(k, view, learner, hop=hops[k % len(hops)])


def random_pairs(k: int, view: Sequence[int], learner: int) -> Row:
    """One half each in a new random matching in every round."""
    return _matched(0, _shuffled(k, tuple(view)), learner, hop=1)


ALL: dict[str, Mixing] = {f.__name__: f for f in (uniform, ring, randomized_ring, pairwise, exponential, random_pairs)}


def matrix(mixing: Mixing, k: int, view: Sequence[int]) -> Tensor:
    """Return T_k as a float64 matrix (L, L) in the order of `view`."""
    rows = [mixing(k, view, learner) for learner in view]
    return torch.tensor([[row.get(j, 0.0) for j in view] for row in rows], dtype=torch.float64)


def contraction(mixing: Mixing, learners: int, rounds: int = 200) -> float:
    """Average fraction of the learners' disagreement, sum_i |w_i - mean|^2, that remains after a round.

    It is the largest eigenvalue of the mean of T_k' T_k off the consensus: for the fixed ring the square of |lambda_2|,
    for the randomised ring (L - 3) / (3 (L - 1)) in the limit of many rounds.
    """
    if learners == 1:
        return 0.0
    square = torch.zeros(learners, learners, dtype=torch.float64)
    for k in range(rounds):
        t = matrix(mixing, k, range(learners))
        square += t.T @ t / rounds
    return float(torch.linalg.eigvalsh(square - 1 / learners)[-1])


@lru_cache(maxsize=1024)  # many learners of one process need the same round
def _shuffled(k: int, view: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(random.Random(f"murmur mixing {k}").sample(sorted(view), len(view)))


def _matched(k: int, view: Sequence[int], learner: int, hop: int) -> Row:
    """Row of a matching of even positions with those `hop` (odd) away; one learner sits out if their number is odd."""
    idle = [view[(k // 2) % len(view)]] if len(view) % 2 else []
    order = [j for j in view if j not in idle]
    if learner in idle:
        return {learner: 1.0}
    at = order.index(learner)
    peer = order[(at + (hop if at % 2 == 0 else -hop)) % len(order)]
    return {learner: 0.5, peer: 0.5}
