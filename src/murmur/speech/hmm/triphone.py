"""Training of triphones: a tree grown on alignments of an earlier model, then EM.

Shapes: T frames, F features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from murmur.speech.hmm import passes
from murmur.speech.hmm.blocks import Workers, cut_into_blocks
from murmur.speech.hmm.convert import carry_over
from murmur.speech.hmm.em import MixtureStats, maximise
from murmur.speech.hmm.em_loop import MAX_LOST_EARLY, EmConfig, EmLoop, Progress, Trained, ignore_progress
from murmur.speech.hmm.grow import TreeConfig, grow_tree
from murmur.speech.hmm.material import Features
from murmur.speech.hmm.mixtures import FloatArray, one_gaussian_each
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.monophone import usable
from murmur.speech.hmm.projection import Projection
from murmur.speech.hmm.questions import derive_questions
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import Tree
from murmur.speech.hmm.tree_stats import TreeStats, merge_stats, tree_stats

# Relative to the variance over all frames, for the first Gaussians of the leaves.
VARIANCE_FLOOR = 0.01


def _default_em() -> EmConfig:
    return EmConfig(gaussians=4000, passes=14, grow_passes=10, align_passes=(4, 7, 10), min_gaussian_frames=15.0)


@dataclass(frozen=True)
class TriphoneConfig:
    """Settings of the tree, and of the EM loop after it.

    Attributes:
        tree: size of the decision tree that ties the states of triphones.
        em: EM loop that trains the tied states.
    """

    tree: TreeConfig = field(default_factory=TreeConfig)
    em: EmConfig = field(default_factory=_default_em)


def train_triphone(
    previous: HmmGmm,
    feats: Features,
    texts: Mapping[str, str],
    config: TriphoneConfig | None = None,
    jobs: int = 1,
    progress: Progress = ignore_progress,
) -> Trained:
    """Triphones from the alignments of an earlier model of the same language.

    Args:
        previous: model that aligns the corpus; its projection, if any, is kept.
        feats: {utterance: (T, F) float32}, the features of the earlier model.
        texts: {utterance: transcript}.
        config: settings of the tree and the EM loop; None for the defaults.
        jobs: number of processes.
        progress: function called after each pass.

    Raises:
        ValueError: more than 1 % of the utterances cannot be used; the message names them and gives the reasons.
    """
    config = config or TriphoneConfig()
    material = usable(previous.lang, feats, texts)
    with Workers(cut_into_blocks(material.feats, material.texts), jobs) as workers:
        workers.map(passes.compile_graphs, previous)
        loop = EmLoop("triphone", workers, material, config.em, progress)
        failed = loop.realign(previous, config.em.align, MAX_LOST_EARLY)
        model, variance_F = grow_model(workers, previous, previous.projection, config.tree)
        workers.map(carry_over, previous, model)
        return loop.run(model, variance_F, failed)


def grow_model(
    workers: Workers, previous: HmmGmm, projection: Projection | None, config: TreeConfig
) -> tuple[HmmGmm, FloatArray]:
    """A model with a new tree and one Gaussian per pdf, fitted to the leaf's frames; and (F,) the variance over all
    frames. Both are of the features after `projection`, and come from the blocks' alignments by `previous`."""
    stats = merge_stats(workers.map(tree_stats, previous, projection))
    tree = grow_tree(previous.lang, stats, derive_questions(previous.lang, stats), config)
    frames = stats.counts.sum()
    mean_F = stats.first.sum(0) / frames
    variance_F = stats.second.sum(0) / frames - mean_F**2
    flat = one_gaussian_each(mean_F, variance_F, tree.num_pdfs)
    sums = leaf_sums(tree, stats)
    mixtures = maximise(flat, sums, VARIANCE_FLOOR * variance_F, min_occupancy=1.0)
    log_probs = make_transitions(previous.lang, tree).log_probs
    return HmmGmm(previous.lang, tree, log_probs, mixtures, projection), variance_F


def leaf_sums(tree: Tree, stats: TreeStats) -> MixtureStats:
    """The sums of all contexts that reach each leaf."""
    pdfs = np.array([tree.pdf(key[:3], key[3]) for key in stats.keys.tolist()])
    counts, dim = np.zeros(tree.num_pdfs), stats.first.shape[1]
    first, second = np.zeros((tree.num_pdfs, dim)), np.zeros((tree.num_pdfs, dim))
    np.add.at(counts, pdfs, stats.counts)
    np.add.at(first, pdfs, stats.first)
    np.add.at(second, pdfs, stats.second)
    return MixtureStats(counts, first, second, 0.0, int(counts.sum()))
