"""Growing of triphone trees: best first, by the gain in likelihood of one Gaussian per leaf.

Each (phone, pdf class) starts as one leaf. In each step the leaf whose best question gains most is split, until the
wanted number of leaves is reached or no question gains enough. Young, Odell and Woodland (1994).

Questions are derived from the data: phones are merged bottom up, always the two whose merger costs the least
likelihood; each set of phones made in this process is a question, beside every single phone and "silence or outside".
Automatic questions: Beulen and Ney (1998); the criterion is that of the tree itself.

Trees of the chain topology grow on every s-th frame of three-state alignments. A phone begins with pdf class 0 at the
first of the taken frames that belong to it, and goes on with class 1. Three-state phones last three frames at least, so
that none is lost between every third frame.

Shapes: T or N frames, U = ceil(T / s) taken frames, K contexts, V values of a neighbour (phones and outside), Q
questions, F features.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from murmur.speech.features.chunks import fit_targets
from murmur.speech.hmm.blocks import Block
from murmur.speech.hmm.mixtures import FloatArray
from murmur.speech.hmm.model import HmmGmm, Projection
from murmur.speech.hmm.topology import num_states
from murmur.speech.hmm.transitions import Transitions
from murmur.speech.hmm.tree import IntArray, Leaf, Question, Tree
from murmur.speech.lexicon.lexicon import Lang

OUTSIDE = 0
LEAST_VARIANCE = 0.01
MERGED_BLOCKS = 64  # the bits of a sum depend on it beyond so many blocks
NEIGHBOURS = (0, 2)


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

    @property
    def sums(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """`counts`, `first`, `second`."""
        return self.counts, self.first, self.second


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
    return stats_of(np.concatenate(windows), np.concatenate(feats))


def stats_of(windows_N4: IntArray, feats_NF: NDArray) -> TreeStats:
    """Sums over frames with these contexts."""
    wide = feats_NF.astype(np.float64)
    return sum_by_key(windows_N4, np.ones(len(wide)), wide, wide**2)


def merge_stats(blocks: Iterable[TreeStats | None], at_once: int = MERGED_BLOCKS) -> TreeStats:
    """The sums of several blocks, of which `at_once` are held.

    Raises:
        ValueError: no block has an alignment.
    """
    parts: list[TreeStats] = []
    for stats in blocks:
        if len(parts) == at_once:
            parts = [_merged(parts)]
        if stats is not None:
            parts.append(stats)
    if not parts:
        raise ValueError("no utterance is aligned, so no tree can be grown: find out why the alignment failed")
    return _merged(parts)


def _merged(parts: Iterable[TreeStats]) -> TreeStats:
    return sum_by_key(*(np.concatenate(rows) for rows in zip(*((p.keys, *p.sums) for p in parts), strict=True)))


def sum_by_key(keys_N: IntArray, counts_N: FloatArray, first_NF: FloatArray, second_NF: FloatArray) -> TreeStats:
    """Add up the rows with equal keys, in their order."""
    order = np.lexsort(keys_N.T[::-1])
    sorted_keys = keys_N[order]
    changes = np.any(sorted_keys[1:] != sorted_keys[:-1], 1)
    begins = np.flatnonzero(np.concatenate([[True], changes]))
    sums = (np.add.reduceat(part[order], begins) for part in (counts_N, first_NF, second_NF))
    return TreeStats(sorted_keys[begins], *sums)


def sums_by(stats: TreeStats, rows: NDArray[np.int64], values: NDArray, size: int) -> list[FloatArray]:
    """(V,), (V, F), (V, F) the sums of the contexts `rows` that have each of the values 0 ... size - 1."""
    found = [np.zeros((size, *part.shape[1:])) for part in stats.sums]
    for total, part in zip(found, stats.sums, strict=True):
        np.add.at(total, values, part[rows])
    return found


def log_likelihood(counts: NDArray, first: NDArray, second: NDArray) -> NDArray:
    """The log-likelihood of frames under the best-fitting diagonal Gaussian, from their sums.

    For n frames with variances v: -n / 2 (F + sum log 2 pi v); 0 for n = 0. The last axis of `first` and `second` is F;
    variances are at least 0.01.
    """
    n = np.maximum(counts, 1e-10)[..., None]
    variance = np.maximum(second / n - (first / n) ** 2, LEAST_VARIANCE)
    return -0.5 * counts * (np.log(2 * np.pi * variance) + 1).sum(-1)


def derive_questions(lang: Lang, stats: TreeStats) -> list[tuple[int, ...]]:
    """Sets of phone labels for questions, without repetition; a set with the silence includes the outside."""
    speech = [p for p in range(lang.num_silence + 1, lang.num_phones + 1) if np.any(stats.keys[:, 1] == p)]
    questions: list[tuple[int, ...]] = [(OUTSIDE, *lang.silence_ids)]
    questions += [(p,) for p in range(2, lang.num_phones + 1)]
    questions += cluster_phones(speech, stats)
    return list(dict.fromkeys(tuple(sorted(q)) for q in questions))


def cluster_phones(phones: list[int], stats: TreeStats) -> list[tuple[int, ...]]:
    """The sets of phones made by merging them bottom up, in the order of the mergers, without the set of all phones."""
    classes = int(stats.keys[:, 3].max()) + 1 if len(stats.keys) else 0
    sums: dict[tuple[int, ...], list[FloatArray]] = {}
    for phone in phones:
        rows = np.flatnonzero(stats.keys[:, 1] == phone)
        sums[phone,] = sums_by(stats, rows, stats.keys[rows, 3], classes)
    made = []
    while len(sums) > 2:
        sets = list(sums)
        parts = [np.stack(part) for part in zip(*sums.values(), strict=True)]
        alone = log_likelihood(*parts).sum(-1)
        together = log_likelihood(*(part[:, None] + part[None] for part in parts)).sum(-1)
        loss = alone[:, None] + alone[None] - together
        loss[np.tril_indices(len(sets))] = np.inf
        i, j = np.unravel_index(int(np.argmin(loss)), loss.shape)
        made.append(tuple(sorted(sets[i] + sets[j])))
        sums[made[-1]] = [a + b for a, b in zip(sums.pop(sets[i]), sums.pop(sets[j]), strict=True)]
    return made


@dataclass(frozen=True)
class TreeConfig:
    """Limits of the growth.

    Attributes:
        leaves: wanted number of leaves in all, including silence.
        min_frames: least number of frames on each side of a split.
        min_gain: least gain of a split in natural log-likelihood.
    """

    leaves: int = 1200
    min_frames: float = 60.0
    min_gain: float = 40.0


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

    def add_leaf(rows: NDArray[np.int64], splittable: bool) -> int:
        nodes.append(None)
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
        then, otherwise = add_leaf(rows[yes], True), add_leaf(rows[~yes], True)
        nodes[node] = Question(chosen.position, chosen.members, then, otherwise)
        leaves += 1
    pdf = itertools.count()
    return Tree(3, 1, tuple(Leaf(next(pdf)) if node is None else node for node in nodes), roots)


def best_split(stats: TreeStats, rows: NDArray[np.int64], members_QV: FloatArray, min_frames: float) -> Split | None:
    """The question with the largest gain for the contexts `rows`; None if none leaves enough frames on both sides.

    Among equal gains, the first question about the left neighbour wins.
    """
    best = None
    for position in NEIGHBOURS:
        sums = sums_by(stats, rows, stats.keys[rows, position], members_QV.shape[1])
        total = [part.sum(0) for part in sums]
        yes = [np.tensordot(members_QV, part, 1) for part in sums]
        no = [whole - part for whole, part in zip(total, yes, strict=True)]
        gains = log_likelihood(*yes) + log_likelihood(*no) - log_likelihood(*total)
        gains[(yes[0] < min_frames) | (no[0] < min_frames)] = -np.inf
        top = int(np.argmax(gains))
        if np.isfinite(gains[top]) and (best is None or gains[top] > best.gain):
            best = Split(float(gains[top]), position, tuple(np.flatnonzero(members_QV[top]).tolist()))
    return best


def lower_rate_windows(transitions: Transitions, tids_T: IntArray, frames: int, step: int, shift: int = 0) -> IntArray:
    """(U, 4) left neighbour, phone, right neighbour and pdf class of the frames shift, shift + step, ...

    The features have `frames` frames, a few more or fewer than the alignment. Frames beyond the ends stand for the
    first and the last one.
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
    parts = (
        stats_of(lower_rate_windows(transitions, tids_T, len(feats_TF), step), feats_TF[::step])
        for feats_TF, tids_T in ((feats[utterance], tids_T) for utterance, tids_T in tids.items())
    )
    return merge_stats(parts, at_once=max(1, len(tids)))
