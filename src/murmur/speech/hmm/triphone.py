"""Training of triphones: a tree grown on alignments of an earlier model, then EM.

Shapes: T frames, F features, I transition-ids + 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from murmur.execution.executors import Jobs
from murmur.speech.hmm.blocks import Block, Workers, cut_into_blocks
from murmur.speech.hmm.em_loop import EmConfig, EmLoop, Progress, Trained, ignore_progress
from murmur.speech.hmm.grow import (
    TreeConfig,
    TreeStats,
    derive_questions,
    grow_tree,
    merge_stats,
    sums_by,
    tree_stats,
    windows_of,
)
from murmur.speech.hmm.material import Features, usable
from murmur.speech.hmm.mixtures import FloatArray, MixtureStats, maximise, one_gaussian_each
from murmur.speech.hmm.model import HmmGmm, Projection
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import IntArray, Tree

# Relative to the variance over all frames, for the first Gaussians of the leaves.
VARIANCE_FLOOR = 0.01


EM = EmConfig(gaussians=4000, passes=14, grow_passes=10, align_passes=(4, 7, 10), min_gaussian_frames=15.0)


@dataclass(frozen=True)
class TriphoneConfig:
    """Settings of the tree, and of the EM loop after it.

    Attributes:
        tree: size of the decision tree that ties the states of triphones.
        em: EM loop that trains the tied states.
    """

    tree: TreeConfig = field(default_factory=TreeConfig)
    em: EmConfig = EM


def train_triphone(
    previous: HmmGmm,
    feats: Features,
    texts: Mapping[str, str],
    config: TriphoneConfig | None = None,
    jobs: Jobs = 1,
    progress: Progress = ignore_progress,
) -> Trained:
    """Triphones from the alignments of an earlier model of the same language.

    `previous` aligns the corpus, whose features are its own, and its projection, if any, is kept. The other arguments,
    and the errors, are those of `train_monophone`.
    """
    config = config or TriphoneConfig()
    with aligned_by(previous, "triphone", feats, texts, config.em, jobs, progress) as loop:
        return loop.run(*grow_model(loop.workers, previous, previous.projection, config.tree))


@contextmanager
def aligned_by(
    previous: HmmGmm,
    stage: str,
    feats: Features,
    texts: Mapping[str, str],
    config: EmConfig,
    jobs: Jobs,
    progress: Progress,
    speakers: Mapping[str, str] | None = None,
) -> Iterator[EmLoop]:
    """Context with the loop of a new stage, whose blocks are aligned by an earlier model of the same language."""
    material = usable(previous.lang, feats, texts)
    with Workers(cut_into_blocks(material.feats, material.texts, speakers), jobs) as workers:
        loop = EmLoop(stage, workers, material.losses, config, progress)
        loop.realign(previous)
        yield loop


def grow_model(
    workers: Workers, previous: HmmGmm, projection: Projection | None, config: TreeConfig
) -> tuple[HmmGmm, FloatArray]:
    """A model with a new tree and one Gaussian per pdf, fitted to the leaf's frames; and (F,) the variance over all
    frames. Both are of the features after `projection`, and come from the blocks' alignments by `previous`, which are
    then converted to the new model."""
    stats = merge_stats(workers.stream(tree_stats, previous, projection))
    tree = grow_tree(previous.lang, stats, derive_questions(previous.lang, stats), config)
    frames = stats.counts.sum()
    mean_F = stats.first.sum(0) / frames
    variance_F = stats.second.sum(0) / frames - mean_F**2
    flat = one_gaussian_each(mean_F, variance_F, tree.num_pdfs)
    sums = leaf_sums(tree, stats)
    mixtures = maximise(flat, sums, VARIANCE_FLOOR * variance_F, min_occupancy=1.0)
    model = HmmGmm(previous.lang, tree, make_transitions(previous.lang, tree).log_probs, mixtures, projection)
    workers.map(carry_over, previous, model)
    return model, variance_F


def leaf_sums(tree: Tree, stats: TreeStats) -> MixtureStats:
    """The sums of all contexts that reach each leaf."""
    pdfs = tree.pdfs_of(stats.keys)
    counts, first, second = sums_by(stats, np.arange(len(pdfs)), pdfs, tree.num_pdfs)
    return MixtureStats(counts, first, second, 0.0, int(counts.sum()))


def carry_over(block: Block, old: HmmGmm, new: HmmGmm) -> None:
    """Convert a block's alignments to a new model."""
    block.tids = converted(block.tids, old, new)


def converted(tids: Mapping[str, IntArray], old: HmmGmm, new: HmmGmm) -> dict[str, IntArray]:
    """The same paths in the transition-ids of `new`, whose phones and topology are those of `old`; its pdfs differ."""
    if not tids:
        return {}
    was, now = old.transitions, new.transitions
    tids_N = np.concatenate(list(tids.values()))
    pdfs_N = new.tree.pdfs_of(np.concatenate([windows_of(was, tids_T) for tids_T in tids.values()]))
    wanted_N = _code(was.phone_of[tids_N], was.state_of[tids_N], pdfs_N, was.arc_of[tids_N])
    codes_I = _code(now.phone_of, now.state_of, now.pdf_of, now.arc_of)[1:]
    order = np.argsort(codes_I)
    found_N = (order[np.searchsorted(codes_I, wanted_N, sorter=order)] + 1).astype(np.int32)
    ends = np.cumsum([len(tids_T) for tids_T in tids.values()])
    return dict(zip(tids, np.split(found_N, ends[:-1]), strict=True))


def _code(phone: NDArray, state: NDArray, pdf: NDArray, arc: NDArray) -> NDArray[np.int64]:
    """One number for (phone, state, pdf, arc); topologies have at most 8 states and 8 arcs a state."""
    return ((pdf.astype(np.int64) * (1 << 20) + phone) * 8 + state) * 8 + arc
