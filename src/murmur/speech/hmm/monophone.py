"""Training of monophones by flat start and EM.

Shapes: T frames, F features.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from murmur.execution.executors import Jobs
from murmur.speech.features.derived import shape_of
from murmur.speech.hmm.blocks import Block, Workers, cut_into_blocks
from murmur.speech.hmm.em_loop import EmConfig, EmLoop, Progress, Trained, ignore_progress
from murmur.speech.hmm.material import Features, usable
from murmur.speech.hmm.mixtures import FloatArray, one_gaussian_each
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.passes import AlignOptions, equal_length_path, graphs_of
from murmur.speech.hmm.transitions import make_transitions
from murmur.speech.hmm.tree import monophone_tree
from murmur.speech.lexicon.lexicon import Lang

# After the flat start all states are similar: only a larger scale separates paths and limits their number.
FLAT_START_SEARCH = AlignOptions(acoustic_scale=0.3, beam=10.0, retry_beam=40.0)


@dataclass(frozen=True)
class MonophoneConfig(EmConfig):
    """Settings of the EM loop with several flat starts.

    Attributes:
        flat_starts: number of random starts; training continues from the one with the best fit of single Gaussians
            after `trial_passes`. A large corpus needs only one; with few utterances, starts differ a lot.
        trial_passes: number of passes of each trial, if there are several.
    """

    flat_starts: int = 1
    trial_passes: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.flat_starts < 1 or self.trial_passes < 1:
            raise ValueError(f"flat_starts and trial_passes must be positive, got {self}")


def train_monophone(
    lang: Lang,
    feats: Features,
    texts: Mapping[str, str],
    config: EmConfig | None = None,
    jobs: Jobs = 1,
    progress: Progress = ignore_progress,
) -> Trained:
    """Monophones from features and transcripts alone: flat start, then EM with growing mixtures.

    Args:
        lang: phones and words.
        feats: {utterance: (T, F) float32}, e.g. 13 MFCC with deltas and speaker mean normalisation.
        texts: {utterance: transcript}.
        config: settings of the EM loop; a MonophoneConfig chooses among several flat starts; None for the defaults.
        jobs: number of processes, or an engine.
        progress: function called after each pass.

    Raises:
        ValueError: more than 1 % of the utterances cannot be used; the message names them and gives the reasons.
    """
    config = config or EmConfig()
    material = usable(lang, feats, texts)
    with Workers(cut_into_blocks(material.feats, material.texts), jobs) as workers:
        mean_F, variance_F = global_moments(workers)
        tree = monophone_tree(lang)
        log_probs = make_transitions(lang, tree).log_probs
        model = HmmGmm(lang, tree, log_probs, one_gaussian_each(mean_F, variance_F, tree.num_pdfs))
        loop = EmLoop("monophone", workers, material.losses, config, progress)
        if isinstance(config, MonophoneConfig):
            model = choose_start(loop, model, variance_F, config)
        else:
            model = flat_start(loop, model, variance_F, config.seed)
        loop.realign(model, FLAT_START_SEARCH)
        return loop.run(model, variance_F)


def flat_start(loop: EmLoop, model: HmmGmm, variance_F: FloatArray, seed: int) -> HmmGmm:
    """Single Gaussians from random paths with states of about equal length."""
    loop.workers.map(align_flat, model, seed)
    return loop.maximise(model, loop.accumulate(model), variance_F)


def align_flat(block: Block, model: HmmGmm, seed: int) -> None:
    """Give each utterance a random path with states of about equal length.

    Each utterance has its own seed: with one seed for all, the random places of optional silences coincide between
    utterances, and the models of words and silence do not separate.
    """
    found = {}
    for utterance, graph in graphs_of(block, model).items():
        frames = shape_of(block.feats, utterance)[0]
        path = equal_length_path(graph, frames, flat_start_seed(seed, utterance))
        if path is not None:
            found[utterance] = path
    block.tids = found


def flat_start_seed(seed: int, utterance: str) -> int:
    """The seed of one utterance's flat-start path: a positive 31-bit number."""
    return zlib.crc32(f"{seed} {utterance}".encode()) & 0x7FFFFFFF


def choose_start(loop: EmLoop, model: HmmGmm, variance_F: FloatArray, config: MonophoneConfig) -> HmmGmm:
    """The flat start of several whose single Gaussians explain the data best after some passes."""
    best, best_log_likelihood = model, -math.inf
    for number in range(config.flat_starts):
        # The product makes the starts of consecutive seeds different.
        tried = flat_start(loop, model, variance_F, config.seed * config.flat_starts + number)
        for _ in range(config.trial_passes):
            loop.realign(tried, FLAT_START_SEARCH)
            stats = loop.accumulate(tried)
            tried = loop.maximise(tried, stats, variance_F)
        log_likelihood = stats.mixtures.log_likelihood / max(1, stats.mixtures.frames)
        if log_likelihood > best_log_likelihood:
            best, best_log_likelihood = tried, log_likelihood
    return best


def global_moments(workers: Workers) -> tuple[FloatArray, FloatArray]:
    """(F,) mean and variance of the features of all blocks."""
    parts = workers.map(feature_sums)
    frames = sum(part[2] for part in parts)
    mean_F = reduce(add, (part[0] for part in parts)) / frames
    variance_F = reduce(add, (part[1] for part in parts)) / frames - mean_F**2
    constant = np.flatnonzero(variance_F <= 1e-10)
    if len(constant):
        raise ValueError(f"features {constant.tolist()} are the same in all frames: remove them")
    return mean_F, variance_F


def feature_sums(block: Block) -> tuple[FloatArray, FloatArray, int]:
    """Sums of x and x^2 over all frames, and the number of frames."""
    total = squares = np.zeros(1)
    frames = 0
    for x in block.feats.values():
        wide = x.astype(np.float64)
        total, squares, frames = total + wide.sum(0), squares + (wide**2).sum(0), frames + len(x)
    return total, squares, frames
