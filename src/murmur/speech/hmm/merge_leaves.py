"""Merging of the leaves of a tree, bottom up: contexts that questions have separated may be alike after all.

The two leaves of one root whose merger costs least log-likelihood of one Gaussian per leaf are merged, again and again,
while that costs less than a limit. Kaldi clusters the leaves of its trees likewise (`build-tree`, with the gain of its
last split as the limit).

Shapes: L leaves, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from murmur.speech.hmm.mixtures import FloatArray
from murmur.speech.hmm.tree_stats import TreeStats, log_likelihood

Rows = NDArray[np.int64]


def merged(stats: TreeStats, leaves: Mapping[int, Rows], roots: Mapping[int, int], most_loss: float) -> dict[int, int]:
    """Each leaf, and the leaf with which it shares a pdf: the one of its group with the lowest number.

    Args:
        stats: sums of the contexts.
        leaves: numbers of the contexts that reach each leaf.
        roots: root of each leaf.
        most_loss: limit of the loss of a merger, natural log-likelihood; 0 merges nothing.
    """
    same = {leaf: leaf for leaf in leaves}
    if most_loss <= 0:
        return same
    for root in sorted(set(roots.values())):
        own = sorted(leaf for leaf in leaves if roots[leaf] == root)
        for group in _groups([_sums(stats, leaves[leaf]) for leaf in own], most_loss):
            for place in group:
                same[own[place]] = own[min(group)]
    return same


def _sums(stats: TreeStats, rows: Rows) -> list[FloatArray]:
    return [part[rows].sum(0) for part in (stats.counts, stats.first, stats.second)]


def _groups(sums: Sequence[Sequence[FloatArray]], most_loss: float) -> list[list[int]]:
    """The groups of L leaves of one root."""
    parts = [np.stack([leaf[k] for leaf in sums]) for k in range(3)]
    fits = log_likelihood(parts[0], parts[1], parts[2])
    groups = [[place] for place in range(len(sums))]
    losses = np.full((len(sums), len(sums)), np.inf)
    for place in range(len(sums)):
        losses[place, :place] = _losses(parts, fits, place)[:place]
    while len(groups) > 1 and (best := float(losses.min())) < most_loss:
        into, out = sorted(int(at) for at in np.unravel_index(losses.argmin(), losses.shape))
        groups[into] += groups[out]
        groups[out] = []
        for part in parts:
            part[into] += part[out]
        fits[into] = fits[into] + fits[out] - best
        losses[out], losses[:, out] = np.inf, np.inf
        new = _losses(parts, fits, into)
        for other, group in enumerate(groups):
            if group and other != into:
                losses[max(into, other), min(into, other)] = new[other]
    return [group for group in groups if group]


def _losses(parts: Sequence[FloatArray], fits: FloatArray, place: int) -> FloatArray:
    """(L,) loss of merging each leaf with the one at a place."""
    counts, first, second = (part + part[place] for part in parts)
    return fits + fits[place] - log_likelihood(counts, first, second)
