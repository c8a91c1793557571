"""Training of monophones by flat start and EM, and the EM loop that later stages share.

Rabiner, "A tutorial on hidden Markov models" (1989), section VI; the recipe (Viterbi training, growing mixtures) is
Kaldi's. Training repeats bit for bit for a seed, whatever the number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from murmur.speech.hmm import passes
from murmur.speech.hmm.blocks import Workers, cut_into_blocks
from murmur.speech.hmm.em import maximise
from murmur.speech.hmm.material import Features, Material, check_material, refuse_losses
from murmur.speech.hmm.mixtures import FloatArray, one_gaussian_each
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.split import allocate, split
from murmur.speech.hmm.transitions import make_transitions, reestimate
from murmur.speech.hmm.tree import monophone_tree
from murmur.speech.hmm.viterbi import AlignOptions
from murmur.speech.lexicon import Lang


@dataclass(frozen=True)
class EmConfig:
    """The EM loop.

    Attributes:
        gaussians: how many Gaussians all mixtures have together in the end.
        passes: M steps.
        grow_passes: in so many passes the number of Gaussians grows, in even steps.
        align_passes: before these passes the alignments are made anew (the first pass has number 1).
        allocation_power: Gaussians are shared out in proportion to frames to this power.
        min_gaussian_frames: a Gaussian that holds fewer is removed; three times as many are needed for another one.
        variance_floor: the smallest variance, as a fraction of the features' variance over the corpus.
        seed: of the flat start and of the splits.
        align: how to search for alignments.
    """

    gaussians: int = 1000
    passes: int = 30
    grow_passes: int = 22
    align_passes: tuple[int, ...] = (*range(2, 12), 13, 15, 17, 19, 22, 25, 28)
    allocation_power: float = 0.25
    min_gaussian_frames: float = 5.0
    variance_floor: float = 0.005
    seed: int = 0
    align: AlignOptions = field(default_factory=AlignOptions)

    def __post_init__(self) -> None:
        if self.passes < 1 or not 1 <= self.grow_passes <= self.passes or self.gaussians < 1:
            raise ValueError(f"passes, grow_passes (at most passes) and gaussians must be positive, got {self}")


@dataclass(frozen=True)
class PassReport:
    """One pass of training.

    Attributes:
        stage: what is trained.
        number: of the pass, from 1.
        passes: how many there will be.
        log_likelihood_per_frame: of the data under the model before the pass's M step, given the alignment.
        gaussians: after the pass.
        frames: how many took part.
        failed: {utterance: reason} of those that could not be aligned.
    """

    stage: str
    number: int
    passes: int
    log_likelihood_per_frame: float
    gaussians: int
    frames: int
    failed: Mapping[str, str]


Progress = Callable[[PassReport], None]


def ignore_progress(_report: PassReport) -> None:
    """Report to nobody."""


@dataclass(frozen=True)
class Trained:
    """A model with the alignments it was last trained on.

    Attributes:
        model: the model.
        tids: {utterance: transition-ids by frame}.
        lost: {utterance: why it did not take part at the end}.
        history: the passes.
    """

    model: HmmGmm
    tids: dict[str, NDArray[np.int32]]
    lost: dict[str, str]
    history: tuple[PassReport, ...]


def train_monophone(
    lang: Lang,
    feats: Features,
    texts: Mapping[str, str],
    config: EmConfig | None = None,
    jobs: int = 1,
    progress: Progress = ignore_progress,
) -> Trained:
    """Monophones from features and transcripts alone: flat start, then EM with growing mixtures.

    Args:
        lang: phones and words.
        feats: {utterance: (T, F) float32}, e.g. 13 MFCC with deltas and speaker mean normalisation.
        texts: {utterance: transcript}.
        config: the EM loop; None for the defaults.
        jobs: processes.
        progress: called after each pass.

    Raises:
        ValueError: more than 1 % of the utterances cannot be used; names them and says why.
    """
    config = config or EmConfig()
    material = usable(lang, feats, texts)
    with Workers(cut_into_blocks(material.feats, material.texts), jobs) as workers:
        mean_F, variance_F = global_moments(workers)
        tree = monophone_tree(lang)
        log_probs = make_transitions(lang, tree).log_probs
        model = HmmGmm(lang, tree, log_probs, one_gaussian_each(mean_F, variance_F, tree.num_pdfs))
        workers.map(passes.compile_graphs, model)
        start = reduce(add, workers.map(passes.align_flat, config.seed))
        return EmLoop("monophone", workers, material, config, progress).run(model, variance_F, start.failed)


def usable(lang: Lang, feats: Features, texts: Mapping[str, str]) -> Material:
    """The usable part of a corpus. Raises ValueError if it is empty or less than 99 % of it."""
    dim = next((x.shape[1] for _, x in sorted(feats.items()) if x.ndim == 2), 0)
    material = check_material(lang, feats, texts, dim)
    if not material.feats:
        raise ValueError(f"no utterance can be used: {dict(list(material.lost.items())[:10])}")
    refuse_losses(material.lost, len(material.feats) + len(material.lost))
    return material


def global_moments(workers: Workers) -> tuple[FloatArray, FloatArray]:
    """(F,) mean and variance of the features of all blocks."""
    parts = workers.map(passes.feature_sums)
    frames = sum(part[2] for part in parts)
    mean_F = reduce(add, (part[0] for part in parts)) / frames
    variance_F = reduce(add, (part[1] for part in parts)) / frames - mean_F**2
    constant = np.flatnonzero(variance_F <= 1e-10)
    if len(constant):
        raise ValueError(f"features {constant.tolist()} are the same in all frames: remove them")
    return mean_F, variance_F


class EmLoop:
    """Passes of alignment, E step, M step and splitting over one corpus."""

    def __init__(self, stage: str, workers: Workers, material: Material, config: EmConfig, progress: Progress) -> None:
        self.stage = stage
        self.workers = workers
        self.material = material
        self.config = config
        self.progress = progress

    def run(self, model: HmmGmm, variance_F: FloatArray, failed: Mapping[str, str]) -> Trained:
        """Train from the alignments that the blocks hold; `failed` names the utterances that have none.

        `variance_F` is the features' variance over the corpus, of which the floor is a fraction.
        """
        history = []
        random = np.random.default_rng(self.config.seed)
        first = model.mixtures.num_pdfs
        for number in range(1, self.config.passes + 1):
            if number in self.config.align_passes:
                failed = self.realign(model)
            grown = first + (self.config.gaussians - first) * min(1.0, number / self.config.grow_passes)
            target = round(grown) if number <= self.config.grow_passes else 0
            stats = reduce(add, self.workers.map(passes.accumulate, model))
            model = self.update(model, stats, variance_F, target, random)
            per_frame = stats.mixtures.log_likelihood / max(1, stats.mixtures.frames)
            report = PassReport(
                self.stage,
                number,
                self.config.passes,
                per_frame,
                int(model.mixtures.sizes.sum()),
                stats.mixtures.frames,
                failed,
            )
            self.progress(report)
            history.append(report)
        failed = self.realign(model)
        tids = reduce(lambda a, b: a | b, self.workers.map(passes.alignments_of))
        return Trained(model, tids, {**self.material.lost, **failed}, tuple(history))

    def realign(self, model: HmmGmm) -> dict[str, str]:
        """New alignments; returns {utterance: reason} of those that failed, and refuses more than 1 %."""
        report = reduce(add, self.workers.map(passes.realign, model, self.config.align))
        total = len(self.material.feats) + len(self.material.lost)
        refuse_losses({**self.material.lost, **report.failed}, total)
        return report.failed

    def update(
        self,
        model: HmmGmm,
        stats: passes.PassStats,
        variance_F: FloatArray,
        target: int,
        random: np.random.Generator,
    ) -> HmmGmm:
        """The M step of transitions and mixtures, then splits up to `target` Gaussians."""
        transitions = reestimate(model.lang, model.tree, model.transitions, stats.transition_counts)
        floor_F = self.config.variance_floor * variance_F
        mixtures = maximise(model.mixtures, stats.mixtures, floor_F, self.config.min_gaussian_frames)
        if target > mixtures.sizes.sum():
            held_P = np.add.reduceat(stats.mixtures.occupancy, model.mixtures.starts)
            wanted_P = allocate(held_P, target, self.config.allocation_power, 3 * self.config.min_gaussian_frames)
            mixtures = split(mixtures, wanted_P, random)
        return replace(model, log_probs=transitions.log_probs, mixtures=mixtures)
