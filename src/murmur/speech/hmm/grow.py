"""Growing of triphone trees: best first, by the gain in likelihood of one Gaussian per leaf.

Each (phone, pdf class) starts as one leaf. In each step the leaf whose best question gains most is split, until the
wanted number of leaves is reached or no question gains enough. Then leaves of one root may be merged
(`merge_leaves.py`). Young, Odell and Woodland (1994).

Shapes: K contexts of a leaf, V values of a neighbour (phones and outside), Q questions, F features.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from murmur.speech.hmm.merge_leaves import merged
from murmur.speech.hmm.mixtures import FloatArray
from murmur.speech.hmm.topology import num_states
from murmur.speech.hmm.tree import Leaf, Question, Tree
from murmur.speech.hmm.tree_stats import TreeStats, log_likelihood
from murmur.speech.lexicon.lexicon import Lang

NEIGHBOURS = (0, 2)


@dataclass(frozen=True)
class TreeConfig:
    """Limits of the growth.

    Attributes:
        leaves: wanted number of leaves in all, including silence.
        min_frames: least number of frames on each side of a split.
        min_gain: least gain of a split in natural log-likelihood.
        merge_loss: leaves of one phone and state are merged while a merger costs less natural log-likelihood than this;
            0 merges none. A tree then has fewer leaves than `leaves`.
    """

    leaves: int = 1200
    min_frames: float = 60.0
    min_gain: float = 40.0
    merge_loss: float = 0.0


class Split(NamedTuple):
    """The best question for a leaf: its gain, the neighbour that it asks about, and the set."""

    gain: float
    position: int
    members: tuple[int, ...]


def grow_tree(lang: Lang, stats: TreeStats, questions: Sequence[tuple[int, ...]], config: TreeConfig) -> Tree:
    """A triphone tree. The pdfs of silence-like phones are not split."""
    members_QV = np.zeros((len(questions), lang.num_phones + 1))
    for row, question in zip(members_QV, questions, strict=True):
        row[list(question)] = 1.0
    nodes: list[Question | Leaf | None] = []
    roots: dict[tuple[int, int], int] = {}
    queue: list[tuple[float, int, Split, NDArray[np.int64]]] = []
    reached: list[NDArray[np.int64]] = []
    root_of: list[int] = []

    def add_leaf(rows: NDArray[np.int64], splittable: bool, root: int | None = None) -> int:
        nodes.append(None)
        reached.append(rows)
        root_of.append(len(nodes) - 1 if root is None else root)
        found = best_split(stats, rows, members_QV, config.min_frames) if splittable else None
        if found is not None and found.gain >= config.min_gain:
            heapq.heappush(queue, (-found.gain, len(nodes) - 1, found, rows))
        return len(nodes) - 1

    for phone in range(1, lang.num_phones + 1):
        for state in range(num_states(lang, phone)):
            rows = np.flatnonzero((stats.keys[:, 1] == phone) & (stats.keys[:, 3] == state))
            roots[phone, state] = add_leaf(rows, phone > lang.num_silence)
    leaves = len(roots)
    while queue and leaves < config.leaves:
        _, node, chosen, rows = heapq.heappop(queue)
        yes = np.isin(stats.keys[rows, chosen.position], chosen.members)
        then, otherwise = (add_leaf(side, True, root_of[node]) for side in (rows[yes], rows[~yes]))
        nodes[node] = Question(chosen.position, chosen.members, then, otherwise)
        leaves += 1
    ends = {n: reached[n] for n, node in enumerate(nodes) if node is None}
    same = merged(stats, ends, {n: root_of[n] for n in ends}, config.merge_loss)
    return Tree(3, 1, _number_leaves(nodes, same), roots)


def best_split(stats: TreeStats, rows: NDArray[np.int64], members_QV: FloatArray, min_frames: float) -> Split | None:
    """The question with the largest gain for the contexts `rows`; None if none leaves enough frames on both sides.

    Among equal gains, the first question about the left neighbour wins.
    """
    best = None
    for position in NEIGHBOURS:
        neighbour = stats.keys[rows, position]
        sums = [
            _sum_by_value(neighbour, part[rows], members_QV.shape[1])
            for part in (stats.counts, stats.first, stats.second)
        ]
        total = [part.sum(0) for part in sums]
        yes = [np.tensordot(members_QV, part, 1) for part in sums]
        no = [whole - part for whole, part in zip(total, yes, strict=True)]
        gains = _fit(yes) + _fit(no) - _fit(total)
        gains[(yes[0] < min_frames) | (no[0] < min_frames)] = -np.inf
        top = int(np.argmax(gains))
        if np.isfinite(gains[top]) and (best is None or gains[top] > best.gain):
            best = Split(float(gains[top]), position, tuple(np.flatnonzero(members_QV[top]).tolist()))
    return best


def _fit(sums: Sequence[FloatArray]) -> FloatArray:
    counts, first, second = sums
    return log_likelihood(counts, first, second)


def _sum_by_value(values_K: NDArray, parts: FloatArray, size: int) -> FloatArray:
    """(V, ...) sums of the rows that have each value."""
    out = np.zeros((size, *parts.shape[1:]))
    np.add.at(out, values_K, parts)
    return out


def _number_leaves(nodes: Sequence[Question | Leaf | None], same: Mapping[int, int]) -> tuple[Question | Leaf, ...]:
    """Number the leaves (None so far) in the order of the nodes; leaves with one value in `same` share a number."""
    pdfs = {leaf: pdf for pdf, leaf in enumerate(sorted(set(same.values())))}
    return tuple(Leaf(pdfs[same[n]]) if node is None else node for n, node in enumerate(nodes))
