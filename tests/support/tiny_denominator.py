"""A tiny denominator of three phones, paths that are listed one by one, and their sums."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch

from murmur.speech.sequence.denominator import Denominator, PhoneHmm, PhoneNgrams
from murmur.speech.sequence.numerators import Aligned
from murmur.speech.sequence.state_graph import StateGraph

SEQUENCES = ([1, 2, 1], [1, 2, 2, 1], [2, 1], [1])
PDFS = 5


def hmm_of(left: int, phone: int, right: int) -> PhoneHmm:
    """Phone 1: one state that knows its left neighbour; phone 2: two states, of which the second may be skipped."""
    if phone == 1:
        return PhoneHmm((0 if left == 2 else 1,), ((0, 0, 0.6),), ((0, 0.4),))
    return PhoneHmm((2, 3 if right == 1 else 4), ((0, 0, 0.5), (0, 1, 0.2), (1, 1, 0.7)), ((0, 0.3), (1, 0.3)))


def denominator(order: int = 3) -> Denominator:
    return Denominator.of(PhoneNgrams(order).train(SEQUENCES), hmm_of, PDFS)


def dense(graph: StateGraph) -> np.ndarray:
    """Arc probabilities, (source, target)."""
    into = graph.into
    found = np.zeros((graph.states, graph.states))
    ends = [*into.offsets.tolist()[1:], len(into.columns)]
    for target, (first, last) in enumerate(zip(into.offsets.tolist(), ends, strict=True)):
        for k in range(first, last):
            found[int(into.columns[k]), target] += float(into.weights[k])
    return found


def paths_of(graph: StateGraph, frames: int, leak: float) -> Iterator[tuple[tuple[int, ...], float]]:
    """All state sequences, with their probabilities without emissions."""
    initial = graph.initial.double().numpy()
    step = dense(graph) + leak * initial
    for path in itertools.product(range(graph.states), repeat=frames):
        weight = initial[path[0]] * math.prod(step[a, b] for a, b in itertools.pairwise(path))
        if weight > 0:
            yield path, float(weight)


def numerator_paths(
    found: Denominator, aligned: Aligned, first: int, last: int, d: int
) -> dict[tuple[int, ...], float]:
    """All state sequences of a chunk's numerator, by its definition, and their probabilities without emissions.

    The sum over equal sequences is taken, so that a caller can see whether there are any.
    """
    hmms = [hmm for _, hmm, _ in found.places]
    nodes = [(k, s) for k, place in enumerate(aligned.places) for s in range(len(hmms[place].pdfs))]

    def weight(a: tuple[int, int], b: tuple[int, int]) -> float:
        inner = {(s, t): p for s, t, p in hmms[aligned.places[a[0]]].inner}
        if a[0] == b[0]:
            return inner.get((a[1], b[1]), 0.0)
        leaves = dict(hmms[aligned.places[a[0]]].exits)
        return leaves.get(a[1], 0.0) * float(aligned.arcs[a[0]]) if b == (a[0] + 1, 0) else 0.0

    def allowed(node: tuple[int, int], t: int) -> bool:
        k, after = node[0], len(aligned.places) - 1 - node[0]  # as many phones come before and after this one
        in_time = aligned.starts[k] - d <= t < aligned.starts[k + 1] + d
        return bool(in_time and k <= t < aligned.starts[-1] - after)

    total: dict[tuple[int, ...], float] = {}
    for path in itertools.product(nodes, repeat=last - first):
        if all(allowed(node, first + t) for t, node in enumerate(path)):
            states = tuple(int(found.first[aligned.places[k]]) + s for k, s in path)
            p = float(found.graph.initial[states[0]]) * math.prod(weight(a, b) for a, b in itertools.pairwise(path))
            if p > 0:
                assert states not in total, "two paths of a numerator are the same path of the denominator"
                total[states] = p
    return total


def path_sum(paths: Iterator[tuple[tuple[int, ...], float]], pdf_S: torch.Tensor, scores_TC: torch.Tensor) -> tuple:
    """ln Z and gamma (T, C) of listed paths."""
    pdfs, scores = pdf_S.tolist(), scores_TC.tolist()
    total, gamma = 0.0, np.zeros(scores_TC.shape)
    for path, weight in paths:
        p = weight * math.exp(sum(scores[t][pdfs[s]] for t, s in enumerate(path)))
        total += p
        for t, s in enumerate(path):
            gamma[t, pdfs[s]] += p
    return math.log(total), gamma / total
