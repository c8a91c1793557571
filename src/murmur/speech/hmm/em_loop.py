"""The EM loop of all stages of training: alignments, E step, M step, growing mixtures.

Rabiner, "A tutorial on hidden Markov models" (1989), section VI; the recipe (Viterbi training, growing mixtures) is
Kaldi's. Training repeats bit for bit for a seed, whatever the number of processes.

Shapes: F features, P pdfs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from murmur.speech.hmm import passes
from murmur.speech.hmm.blocks import Workers
from murmur.speech.hmm.em import maximise
from murmur.speech.hmm.material import MAX_LOST, Material, refuse_losses
from murmur.speech.hmm.mixtures import FloatArray
from murmur.speech.hmm.model import HmmGmm
from murmur.speech.hmm.split import allocate, split
from murmur.speech.hmm.transitions import reestimate
from murmur.speech.hmm.viterbi import AlignOptions

# Early models fail on utterances that later ones align; only the last alignment must meet the strict limit.
MAX_LOST_EARLY = 0.5


@dataclass(frozen=True)
class EmConfig:
    """Settings of the EM loop.

    Attributes:
        gaussians: final number of Gaussians of all mixtures.
        passes: number of M steps.
        grow_passes: number of passes in which the number of Gaussians grows, in even steps.
        align_passes: passes before which the alignments are made again (the first pass has number 1).
        allocation_power: power of the frame counts by which Gaussians are allocated.
        min_gaussian_frames: least frames of a Gaussian, below which it is removed; a new one needs three times as many.
        variance_floor: smallest variance, as a fraction of the features' variance over the corpus.
        seed: seed of the flat start and of the splits.
        align: settings of the search for alignments.
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
    """Report of one pass of training.

    Attributes:
        stage: name of the stage.
        number: number of the pass, from 1.
        passes: total number of passes.
        log_likelihood_per_frame: mean over the data before the pass's M step, given the alignment.
        gaussians: number of Gaussians after the pass.
        frames: number of frames used.
        failed: {utterance: reason} for utterances that could not be aligned.
    """

    stage: str
    number: int
    passes: int
    log_likelihood_per_frame: float
    gaussians: int
    frames: int
    failed: Mapping[str, str]


Progress = Callable[[PassReport], None]
Refine = Callable[[int, HmmGmm], HmmGmm]
Adapt = Callable[[int, HmmGmm], None]


def ignore_progress(_report: PassReport) -> None:
    """Discard the report."""


def adapt_nothing(_number: int, _model: HmmGmm) -> None:
    """Leave the blocks as they are."""


def keep_model(_number: int, model: HmmGmm) -> HmmGmm:
    """Leave the model as it is."""
    return model


@dataclass(frozen=True)
class Trained:
    """A model with the alignments of its last training pass.

    Attributes:
        model: the model.
        tids: {utterance: transition-ids by frame}.
        lost: {utterance: reason why it did not take part at the end}.
        history: reports of the passes.
    """

    model: HmmGmm
    tids: dict[str, NDArray[np.int32]]
    lost: dict[str, str]
    history: tuple[PassReport, ...]


class EmLoop:
    """Passes of alignment, E step, M step and splitting over one corpus.

    Args:
        stage: name of the stage, for the reports.
        workers: blocks of the corpus, with training graphs for the model's tree and with first alignments.
        material: source of the blocks.
        config: settings of the loop.
        progress: function called after each pass.
    """

    def __init__(self, stage: str, workers: Workers, material: Material, config: EmConfig, progress: Progress) -> None:
        self.stage = stage
        self.workers = workers
        self.material = material
        self.config = config
        self.progress = progress

    def run(
        self,
        model: HmmGmm,
        variance_F: FloatArray,
        failed: Mapping[str, str],
        refine: Refine = keep_model,
        adapt: Adapt = adapt_nothing,
    ) -> Trained:
        """Train from the blocks' alignments; `failed` names the utterances that have none.

        `variance_F` is the features' variance over the corpus, of which the floor is a fraction. `refine(n, model)`
        returns the model that a stage makes at the end of pass n; `adapt(n, model)` may change the blocks before the E
        step of pass n.
        """
        history = []
        random = np.random.default_rng(self.config.seed)
        first = model.mixtures.num_pdfs
        for number in range(1, self.config.passes + 1):
            if number in self.config.align_passes:
                failed = self.realign(model, self.config.align, MAX_LOST_EARLY)
            adapt(number, model)
            stats = self.accumulate(model)
            model = self.maximise(model, stats, variance_F)
            if number <= self.config.grow_passes:
                target = first + (self.config.gaussians - first) * number // self.config.grow_passes
                model = self.grow(model, stats, target, random)
            model = refine(number, model)
            history.append(self.report(number, stats, model, failed))
        failed = self.realign(model, self.config.align, MAX_LOST)
        tids = {u: path for block in self.workers.map(passes.alignments_of) for u, path in block.items()}
        return Trained(model, tids, {**self.material.lost, **failed}, tuple(history))

    def realign(self, model: HmmGmm, options: AlignOptions, max_lost: float) -> dict[str, str]:
        """Make new alignments; return {utterance: reason} of failures, and refuse more than `max_lost`."""
        report = reduce(add, self.workers.map(passes.realign, model, options))
        total = len(self.material.feats) + len(self.material.lost)
        refuse_losses({**self.material.lost, **report.failed}, total, max_lost)
        return report.failed

    def accumulate(self, model: HmmGmm) -> passes.PassStats:
        """The E step on the blocks' alignments."""
        return reduce(add, self.workers.map(passes.accumulate, model))

    def maximise(self, model: HmmGmm, stats: passes.PassStats, variance_F: FloatArray) -> HmmGmm:
        """The M step of transitions and mixtures."""
        transitions = reestimate(model.lang, model.tree, model.transitions, stats.transition_counts)
        floor_F = self.config.variance_floor * variance_F
        mixtures = maximise(model.mixtures, stats.mixtures, floor_F, self.config.min_gaussian_frames)
        return replace(model, log_probs=transitions.log_probs, mixtures=mixtures)

    def grow(self, model: HmmGmm, stats: passes.PassStats, target: int, random: np.random.Generator) -> HmmGmm:
        """Split Gaussians until there are `target` of them, or too few frames for more."""
        wanted_P = allocate(
            stats.frames_of_pdfs(model.transitions.pdf_of),
            target,
            self.config.allocation_power,
            3 * self.config.min_gaussian_frames,
        )
        return replace(model, mixtures=split(model.mixtures, wanted_P, random))

    def report(self, number: int, stats: passes.PassStats, model: HmmGmm, failed: Mapping[str, str]) -> PassReport:
        """Describe a pass and pass the report to the caller's function."""
        sums, gaussians = stats.mixtures, int(model.mixtures.sizes.sum())
        per_frame = sums.log_likelihood / max(1, sums.frames)
        report = PassReport(self.stage, number, self.config.passes, per_frame, gaussians, sums.frames, failed)
        self.progress(report)
        return report
