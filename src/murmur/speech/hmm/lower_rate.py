"""Alignments at a lower frame rate, in the chain topology: phones in context and pdf classes of every s-th frame.

A phone begins with pdf class 0 at the first of the taken frames that belong to it, and goes on with class 1.
Three-state phones last three frames at least, so that none is lost between every third frame.

Shapes: T frames, U = ceil(T / s) taken frames, F features.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from murmur.speech.hmm.hybrid import fit_targets
from murmur.speech.hmm.mixtures import FloatArray
from murmur.speech.hmm.phone_arcs import IntArray
from murmur.speech.hmm.transitions import Transitions
from murmur.speech.hmm.tree import Tree
from murmur.speech.hmm.tree_stats import OUTSIDE, TreeStats, merge_stats, sum_by_key


def lower_rate_windows(transitions: Transitions, tids_T: IntArray, frames: int, step: int, shift: int = 0) -> IntArray:
    """(U, 4) left neighbour, phone, right neighbour and pdf class of the frames shift, shift + step, ...

    Args:
        transitions: transition model of the alignment.
        tids_T: the alignment.
        frames: number of frames of the features, a few more or fewer than the alignment's.
        step: s.
        shift: first frame; frames beyond the ends stand for the first and the last one.
    """
    starts = transitions.arcs.starts(tids_T)
    owners_T = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(tids_T))))
    taken_U = (np.arange(0, frames, step) + shift).clip(0, frames - 1)
    owner_U = fit_targets(owners_T, frames)[taken_U]
    phones = np.concatenate([[OUTSIDE], transitions.phone_of[tids_T[starts]], [OUTSIDE]])
    goes_on = np.concatenate([[False], owner_U[1:] == owner_U[:-1]])
    return np.stack([phones[owner_U], phones[owner_U + 1], phones[owner_U + 2], goes_on], 1).astype(np.int32)


def lower_rate_stats(
    transitions: Transitions, tids: Mapping[str, IntArray], feats: Mapping[str, FloatArray], step: int
) -> TreeStats:
    """Statistics for a tree of the chain topology, from the features of every `step`-th frame.

    Raises:
        ValueError: there is no alignment.
    """
    return merge_stats(
        _stats(lower_rate_windows(transitions, t, len(feats[u]), step), feats[u][::step]) for u, t in tids.items()
    )


def _stats(windows_U4: IntArray, feats_UF: FloatArray) -> TreeStats:
    wide = feats_UF.astype(np.float64)
    return sum_by_key(windows_U4, np.ones(len(wide)), wide, wide**2)


def pdfs_of(tree: Tree, windows_U4: IntArray) -> IntArray:
    """(U,) the pdf of each window."""
    known: dict[tuple[int, ...], int] = {}
    for window in map(tuple, windows_U4.tolist()):
        if window not in known:
            known[window] = tree.pdf(window[1 - tree.centre : 1 - tree.centre + tree.width], window[3])
    return np.array([known[tuple(window)] for window in windows_U4.tolist()], np.int32)
