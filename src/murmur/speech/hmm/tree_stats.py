"""Statistics for growing decision trees: sums of the features by phone in context and pdf class.

Shapes: T or N frames, K contexts, F features.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from murmur.speech.hmm.blocks import Block
from murmur.speech.hmm.mixtures import FloatArray
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.phone_arcs import IntArray
from murmur.speech.hmm.projection import Projection
from murmur.speech.hmm.transitions import Transitions

OUTSIDE = 0


@dataclass(frozen=True)
class TreeStats:
    """Sums over the frames of each context.

    Attributes:
        keys: (K, 4) left neighbour, phone, right neighbour, pdf class; sorted, each once.
        counts: (K,) numbers of frames.
        first: (K, F) sums of x.
        second: (K, F) sums of x^2.
    """

    keys: IntArray
    counts: FloatArray
    first: FloatArray
    second: FloatArray


def windows_of(transitions: Transitions, tids_T: IntArray) -> IntArray:
    """(T, 4) left neighbour, phone, right neighbour and pdf class of each frame; the neighbour is 0 at the edges."""
    starts = transitions.arcs.starts(tids_T)
    phones = np.concatenate([[OUTSIDE], transitions.phone_of[tids_T[starts]], [OUTSIDE]])
    lengths = np.diff(np.append(starts, len(tids_T)))
    triples = np.stack([phones[:-2], phones[1:-1], phones[2:]], 1)
    return np.concatenate([np.repeat(triples, lengths, 0), transitions.state_of[tids_T][:, None]], 1, dtype=np.int32)


def tree_stats(block: Block, model: HmmGmm, projection: Projection | None) -> TreeStats | None:
    """Sums of the projected and adapted features over the alignments of a block by the model; None if it has none."""
    windows, feats = [], []
    for utterance, tids_T in block.tids.items():
        windows.append(windows_of(model.transitions, tids_T))
        feats.append(block.frames(utterance, projection))
    if not windows:
        return None
    wide = np.concatenate(feats).astype(np.float64)
    return sum_by_key(np.concatenate(windows), np.ones(len(wide)), wide, wide**2)


def merge_stats(blocks: Iterable[TreeStats | None]) -> TreeStats:
    """The sums of several blocks.

    Raises:
        ValueError: no block has an alignment.
    """
    parts = [stats for stats in blocks if stats is not None]
    if not parts:
        raise ValueError("no utterance is aligned, so no tree can be grown: find out why the alignment failed")
    return sum_by_key(
        np.concatenate([p.keys for p in parts]),
        np.concatenate([p.counts for p in parts]),
        np.concatenate([p.first for p in parts]),
        np.concatenate([p.second for p in parts]),
    )


def sum_by_key(keys_N: IntArray, counts_N: FloatArray, first_NF: FloatArray, second_NF: FloatArray) -> TreeStats:
    """Add up the rows with equal keys, in their order."""
    order = np.lexsort(keys_N.T[::-1])
    sorted_keys = keys_N[order]
    changes = np.any(sorted_keys[1:] != sorted_keys[:-1], 1)
    begins = np.flatnonzero(np.concatenate([[True], changes]))
    return TreeStats(
        sorted_keys[begins],
        np.add.reduceat(counts_N[order], begins),
        np.add.reduceat(first_NF[order], begins),
        np.add.reduceat(second_NF[order], begins),
    )


def log_likelihood(counts: NDArray, first: NDArray, second: NDArray, floor: float = 0.01) -> NDArray:
    """The log-likelihood of frames under the best-fitting diagonal Gaussian, from their sums.

    For n frames with variances v: -n / 2 (F + sum log 2 pi v); 0 for n = 0. The last axis of `first` and `second` is F;
    variances are at least `floor`.
    """
    n = np.maximum(counts, 1e-10)[..., None]
    variance = np.maximum(second / n - (first / n) ** 2, floor)
    return -0.5 * counts * (np.log(2 * np.pi * variance) + 1).sum(-1)
